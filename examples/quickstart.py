r"""Let Qwen3 think for at most 512 tokens: the body for SGLang's ``POST /generate``.

$ python examples/quickstart.py
{
  "text": "<|im_start|>user\nWhat is 2 + 3?<|im_end|>\n<|im_start|>assistant\n",
  "sampling_params": {
    "temperature": 0.6,
    "max_new_tokens": 2048,
    "custom_params": {
      "thinking_budget": 512
    }
  },
  "custom_logit_processor": "{\"callable\": \"8004953c000000000000008c1273676c616e675f6c702e6275696c74696e73948c215177656e335468696e6b696e674275646765744c6f67697450726f636573736f729493942e\"}"
}
"""  # noqa: E501 - a payload is one line

import json

from sglang_lp.client import attach

think = attach("Qwen3ThinkingBudgetLogitProcessor", thinking_budget=512)
body = think.generate_body(
    {
        "text": "<|im_start|>user\nWhat is 2 + 3?<|im_end|>\n<|im_start|>assistant\n",
        "sampling_params": {"temperature": 0.6, "max_new_tokens": 2048},
    }
)
print(json.dumps(body, indent=2))
