#!/bin/sh
# Ask a server without any Python: a processor's payload is a fixed text.
# Print it with: sglang-lp payload DisallowedTokensLogitsProcessor
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
    "custom_params": {"token_ids": [20]}
  },
  "custom_logit_processor": "{\"callable\": \"8004953a000000000000008c1273676c616e675f6c702e6275696c74696e73948c1f446973616c6c6f776564546f6b656e734c6f6769747350726f636573736f729493942e\"}"
}
JSON
