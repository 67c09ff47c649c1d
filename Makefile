# Every target is a list of steps in scripts/dev.py; this file only finds a Python to run it.

PYTHON ?= python3
TARGETS := env demo evidence quick test test-versions test-drafts test-faults test-fleet canary docs test-docs check bench bench-adapters bench-bounds bench-drafts bench-rules bench-strict bench-text bench-trust soak dashboard fuzz mutants lock

.DEFAULT_GOAL := help
.PHONY: help $(TARGETS)

help:
	@echo "make env    set up .venv and the demo model (minutes once, a second afterwards)"
	@echo "make demo   show the toolkit at work on a real SGLang server"
	@echo "make evidence  what processors do to the answers of a model that speaks: an hour at most"
	@echo "make quick  ruff, mypy and the tests that need no SGLang: a minute"
	@echo "make test   env, check and every test"
	@echo "make test-drafts  the engine tests on further servers: drafts, LoRA adapters, ranks"
	@echo "make test-versions  the core of the engine tests on each supported SGLang"
	@echo "make test-faults  every function of the toolkit raises, in turn, on servers at work"
	@echo "make test-fleet  several servers: behind a router, prefill and decode apart"
	@echo "make canary  try the newest SGLang on the registry, and say what moved"
	@echo "make docs   the documentation as a site, in build/site; warnings are errors"
	@echo "make test-docs  open every page of the site in Chromium"
	@echo "make check  ruff and mypy"
	@echo "make bench  the benchmarks"
	@echo "make bench-adapters  what adapting a class of another engine adds to a step"
	@echo "make bench-bounds  the dearest requests that are accepted, and a search for dearer ones"
	@echo "make bench-drafts  what the toolkit adds to a verify step of speculative decoding"
	@echo "make bench-rules  what the operator's decisions cost a request"
	@echo "make bench-strict  strict thinking beside this toolkit"
	@echo "make bench-text  what banned words, choices and their vocabulary cost"
	@echo "make bench-trust  what the trust boundary costs, and what gets past it"
	@echo "make soak   ten minutes of everything at once on a real server, every answer checked"
	@echo "make dashboard  draw the Grafana dashboard from a server under load"
	@echo "make fuzz   two minutes of coverage-guided fuzzing of the verifier"
	@echo "make mutants  break the trust boundary on purpose, and see the tests notice"
	@echo "make lock   pin the dependencies of pyproject.toml in requirements.lock"

$(TARGETS):
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
		echo "FAILED make $@: needs Python 3.11 to 3.13 as $(PYTHON)," \
			"found: $$($(PYTHON) --version 2>&1); say make $@ PYTHON=python3.12, for example" >&2; \
		exit 1; }
	@exec $(PYTHON) -m scripts.dev $@
