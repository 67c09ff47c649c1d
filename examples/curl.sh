#!/bin/sh
# Ban words without any Python: the payload of a processor is a fixed text.
# Print it with: sglang-lp payload BadWordsLogitProcessor
#
#     sh examples/curl.sh http://127.0.0.1:30000
set -eu
curl --silent --show-error --fail-with-body "${1:-http://127.0.0.1:30000}/generate" \
    --header 'Content-Type: application/json' --data @- <<'JSON'
{
  "text": "What is 2 + 3?",
  "sampling_params": {
    "temperature": 0,
    "max_new_tokens": 16,
    "custom_params": {"words": ["5", "five"], "ignore_case": true}
  },
  "custom_logit_processor": "{\"callable\": \"80049531000000000000008c1273676c616e675f6c702e6275696c74696e73948c16426164576f7264734c6f67697450726f636573736f729493942e\"}"
}
JSON
