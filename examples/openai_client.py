"""Limit how long a model thinks, through the ``openai`` client.

python examples/openai_client.py http://127.0.0.1:30000
"""

from __future__ import annotations

from argparse import ArgumentParser

from openai import OpenAI

from sglang_lp import attach


def main(url: str) -> None:
    """Print the answer of a chat."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    think = attach("ThinkingBudgetLogitProcessor", thinking_budget=32)
    answer = client.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": "What is 2 + 3?"}],
        temperature=0,
        max_tokens=128,
        extra_body=think.extra_body({"separate_reasoning": False, "skip_special_tokens": False}),
    )
    print(answer.choices[0].message.content)


if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("url", help="of a server, such as http://127.0.0.1:30000")
    main(parser.parse_args().url.rstrip("/"))
