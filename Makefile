# make demo and make test need Python 3.11 or newer with pip and venv; everything else they install, below .cache/.
# PYTHON=... chooses the Python, ARGS=... goes to the program that is run.

.PHONY: help demo test tox ci clean

help:
	@echo 'make demo     generate text with a language model through Hardpoint'
	@echo 'make test     run every test; ARGS="-k name" narrows it'
	@echo 'make tox      run tox; ARGS="-e lint" names the environments'
	@echo 'make ci       run all that continuous integration runs'
	@echo 'make clean    remove the environments, the shared torch and the caches'

demo test tox:
	@PYTHON='$(PYTHON)' exec tools/python tools/run.py $@ $(ARGS)

ci:
	@.ci/run

clean:
	@rm -rf .cache .tox .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage build dist
	@echo 'make clean: ok'
