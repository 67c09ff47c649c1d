r"""Keep words out of an answer: the body for SGLang's ``POST /generate``.

$ python examples/quickstart.py
{
  "text": "Tell me a story.",
  "sampling_params": {
    "temperature": 0.6,
    "max_new_tokens": 512,
    "custom_params": {
      "words": [
        "as an AI",
        "I cannot"
      ],
      "ignore_case": true
    }
  },
  "custom_logit_processor": "{\"callable\": \"80049531000000000000008c1273676c616e675f6c702e6275696c74696e73948c16426164576f7264734c6f67697450726f636573736f729493942e\"}"
}
"""  # noqa: E501 - a payload is one line

import orjson

from sglang_lp import attach

polite = attach("BadWordsLogitProcessor", words=["as an AI", "I cannot"], ignore_case=True)
body = polite.generate_body(
    {
        "text": "Tell me a story.",
        "sampling_params": {"temperature": 0.6, "max_new_tokens": 512},
    }
)
print(orjson.dumps(body, option=orjson.OPT_INDENT_2).decode())
