"""Writes ``deploy/prometheus-rule.yaml``: the alerts, for the Prometheus operator."""

from __future__ import annotations

import textwrap
from pathlib import Path

DEPLOY = Path(__file__).parents[1] / "deploy"
RULE = DEPLOY / "prometheus-rule.yaml"

_HEAD = """\
# The alerts of alerts.yaml, for the Prometheus operator (.venv/bin/python -m scripts.alerts):
#   kubectl apply --namespace default --filename deploy/prometheus-rule.yaml
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: sglang-lp
spec:
"""


def write_rule() -> str:
    """Return the text of the file."""
    _, groups, rest = (DEPLOY / "alerts.yaml").read_text().partition("groups:\n")
    return _HEAD + textwrap.indent(groups + rest, "  ")


if __name__ == "__main__":
    RULE.write_text(write_rule())
