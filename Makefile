# scripts/targets.py has the steps of every target; this file finds a Python to run them.

PYTHON ?= python3
TARGETS := env model demo quick test check docs bench soak hunt evidence lock

ifneq ($(filter-out help $(TARGETS),$(MAKECMDGOALS)),)
$(error expected one of: help $(TARGETS); got: $(filter-out help $(TARGETS),$(MAKECMDGOALS)))
endif

.DEFAULT_GOAL := help
.PHONY: help $(TARGETS)

help $(TARGETS):
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
		echo "FAILED make $@: needs Python 3.11 to 3.13 as $(PYTHON)," \
			"found: $$($(PYTHON) --version 2>&1); say make $@ PYTHON=python3.12, for example" >&2; \
		exit 1; }
	@exec $(PYTHON) -m scripts.dev $@ $(MAKEOVERRIDES)
