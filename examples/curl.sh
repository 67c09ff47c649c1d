#!/bin/sh
# Ask without a processor, then with a choice: the second answer is one of two texts. No Python is
# needed, because the server knows its processors by name.
# Send it only to a server with the plugin: a stock server with --enable-custom-logit-processor
# crashes on a processor's name, and needs what sglang-lp payload ChoiceLogitProcessor prints.
#
#     sh examples/curl.sh http://127.0.0.1:30000
set -eu
ask() {
    curl --silent --show-error --fail-with-body "$1/generate" \
        --header 'Content-Type: application/json' --data @-
    echo
}
ask "${1:-http://127.0.0.1:30000}" <<'JSON'
{
  "text": "What is 2 + 3?",
  "sampling_params": {"temperature": 0, "max_new_tokens": 16}
}
JSON
ask "${1:-http://127.0.0.1:30000}" <<'JSON'
{
  "text": "What is 2 + 3?",
  "custom_logit_processor": "ChoiceLogitProcessor",
  "sampling_params": {
    "temperature": 0,
    "max_new_tokens": 16,
    "custom_params": {"choices": ["four", "five"]}
  }
}
JSON
