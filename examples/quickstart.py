"""Keep words out of an answer: what a request takes besides its text.

$ python examples/quickstart.py
{
  "temperature": 0.6,
  "max_new_tokens": 512,
  "custom_params": {
    "words": [
      "as an AI",
      "I cannot"
    ],
    "ignore_case": true
  }
}
"""

import orjson

from sglang_lp import attach

polite = attach("BadWordsLogitProcessor", words=["as an AI", "I cannot"], ignore_case=True)
body = polite.generate_body(  # for POST /generate
    {
        "text": "Tell me a story.",
        "sampling_params": {"temperature": 0.6, "max_new_tokens": 512},
    }
)
print(orjson.dumps(body["sampling_params"], option=orjson.OPT_INDENT_2).decode())
