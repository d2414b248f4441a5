# `make quickstart` trains a spelling-to-phoneme model from scratch, with MINUTES=20 a larger one for as long; `make test`
# checks everything.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CLIENTS := .venv-clients
LOWEST := .venv-lowest
NEWEST := .venv-newest
# The build for the CPU; a newer one from PyPI may bring CUDA.
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
LIBRARY := build/transformers-source

.PHONY: quickstart card test test-lowest test-newest newest constraints test-device test-library test-clients docs check
.PHONY: format clean

QUICKSTART := models/cmudict$(if $(MINUTES),,-quickstart)

quickstart: $(VENV)/.installed
	@if [ -f $(QUICKSTART)/summary.json ]; then \
		echo '$(QUICKSTART) is there already: delete it to train it again.'; \
	else \
		$(BIN)/vanilla-transformer train cmudict$(if $(MINUTES), --max-minutes $(MINUTES),-quick) --output $(QUICKSTART); \
	fi

# The card at the top is the quickstart's own, with its picture where the documentation has it.
card: quickstart
	cp models/cmudict-quickstart/learning_curves.png docs/_static/quickstart-learning-curves.png
	sed 's#(learning_curves.png)#(docs/_static/quickstart-learning-curves.png)#; /^<!-- as vanilla_transformer wrote it/d' \
		models/cmudict-quickstart/README.md > model_card.md

test: $(VENV)/.installed-dev check
	$(BIN)/python -m pytest -n 3
	$(BIN)/python -m pytest tests/device -k "not half_precision"

# The model, generation, Trainer, pipelines, the ONNX graph, the Hub and training, with the lowest versions that
# pyproject.toml allows.
test-lowest: $(LOWEST)/.installed
	$(LOWEST)/bin/python -m pytest -n 3 $(addprefix tests/,data evaluation graph hub loading model recipe recurrent \
		tasks training translation)

# With the newest version of every library but torch; TORCH=2.15.0 takes another torch.
test-newest: newest
	$(NEWEST)/bin/python -m pytest -n 3
	$(NEWEST)/bin/python -m pytest tests/device -k "not half_precision"

# Moves constraints.txt to the newest versions.
constraints: newest
	echo '# Versions that this package was built and measured with.' > constraints.txt
	$(NEWEST)/bin/python -m pip --disable-pip-version-check freeze --exclude-editable | sed 's/+cpu$$//' >> constraints.txt

newest:
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager \
		torch==$(TORCH) --editable '.[train,export,demo,docs,dev]'

# On CUDA's first device, or on a second device that a C++ compiler builds from tests/device.
test-device: $(VENV)/.installed-dev
	$(BIN)/python -m pytest tests/device

docs: $(VENV)/.installed-dev quickstart
	rm -rf docs/_build/pages
	$(BIN)/vanilla-transformer explore models/cmudict-quickstart --output docs/_build/pages/explore \
		--documentation .. --text telephone attention unfathomable transformer
	DOCS_PAGES=_build/pages $(BIN)/sphinx-build -W --keep-going -q docs docs/_build/html
	@echo 'Open docs/_build/html/index.html. The page on which the model computes needs a server:'
	@echo 'python3 -m http.server --directory docs/_build/html'

# TRANSFORMERS=path takes the tests of a checkout of the library's repository, which has those of `generate` too.
test-library: $(LIBRARY)/complete $(TRANSFORMERS:%=%/tests/generation/test_utils.py)
	HF_HUB_OFFLINE=1 PYTHONPATH=$(TRANSFORMERS:%=%:)$(LIBRARY) $(BIN)/python -m pytest -q -o addopts= -W ignore \
		-W always::FutureWarning tests/library

# The library's shared tests are in its source package; what they import and it lacks are empty classes.
$(LIBRARY)/complete: constraints.txt | $(VENV)/.installed-dev
	rm -rf $(LIBRARY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(LIBRARY) parameterized
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --no-build-isolation \
		--dest $(LIBRARY) --constraint constraints.txt transformers
	tar -xzf $(LIBRARY)/transformers-*.tar.gz -C $(LIBRARY) --strip-components 1 --wildcards '*/tests'
	mkdir -p $(LIBRARY)/tests/exporters $(LIBRARY)/tests/generation $(LIBRARY)/tests/fixtures
	echo 'class ExportTesterMixin: pass' > $(LIBRARY)/tests/exporters/test_export.py
	echo 'class GenerationTesterMixin: pass' > $(LIBRARY)/tests/generation/test_utils.py
	echo 'This is a text.' > $(LIBRARY)/tests/fixtures/sample_text.txt
	find $(LIBRARY)/tests -type d -exec touch {}/__init__.py ';'
	touch $@

# Other people's programs need more packages than the package itself, so they have an environment of their own.
test-clients: $(CLIENTS)/.installed
	HF_HUB_OFFLINE=1 $(CLIENTS)/bin/python -m pytest tests/clients

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(CLIENTS) $(LOWEST) $(NEWEST) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis docs/_build

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; give it by make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/.created
	@echo 'Installing what training needs: 1,400 MB on the disk with PyTorch for the CPU, more with CUDA.'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[train]'
	@echo "There are $$(du -sm $(VENV) | cut -f1) MB in $(VENV)."
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/.created
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[train,export,demo,docs,dev]'
	@touch $@ $(VENV)/.installed

$(LOWEST)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(LOWEST)
	sed -n 's/^ *"\([A-Za-z0-9_-]*\)>=\([0-9.]*\)[^"]*",$$/\1==\2/p' pyproject.toml \
		| sed 's/^torch==.*/torch==$(TORCH)/' > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(LOWEST)/constraints.txt \
		--editable '.[train,export,dev]'
	@touch $@

$(CLIENTS)/.installed: pyproject.toml constraints.txt tests/clients/requirements.txt
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable '.[train,dev]' --requirement tests/clients/requirements.txt
	@touch $@
