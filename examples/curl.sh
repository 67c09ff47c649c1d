#!/bin/sh
# Ban words without any Python: the server knows its processors by name.
# A stock SGLang server wants the payload instead: sglang-lp payload BadWordsLogitProcessor
#
#     sh examples/curl.sh http://127.0.0.1:30000
set -eu
curl --silent --show-error --fail-with-body "${1:-http://127.0.0.1:30000}/generate" \
    --header 'Content-Type: application/json' --data @- <<'JSON'
{
  "text": "What is 2 + 3?",
  "custom_logit_processor": "BadWordsLogitProcessor",
  "sampling_params": {
    "temperature": 0,
    "max_new_tokens": 16,
    "custom_params": {"words": ["5", "five"], "ignore_case": true}
  }
}
JSON
