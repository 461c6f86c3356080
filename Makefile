# Every target builds what it needs; a fresh clone needs no other step. `make help` lists them.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PROFILE ?= $(if $(LOCAL),local,smoke)
WHEELS := --only-binary=:all: --no-binary=antlr4-python3-runtime,rouge-score
# Only two of the installed packages have no wheel: these. Hashes are for make product and make local-model: pip checks no hashes together with -e.
PIP := $(PY) -m pip install --quiet --disable-pip-version-check --no-compile
OURS := $(WHEELS) -c constraints.txt -e '.[cluster,graph,wandb,notebooks,dev]'
PAPER ?= segtreemem
TABLE ?= 4

# Your own models and data: MODEL= JUDGE= EMBEDDER= BASE_URL= DATA= QUESTIONS= (SIZE= is the same) BACKBONE= RESULTS= YES=1 MAX_USD= PRICES= ARGS="any=override"
# A role may have an endpoint and a key of its own: JUDGE_BASE_URL= JUDGE_KEY_ENV= (MEMORY, READER, JUDGE, PROBE, EMBEDDER); KEY_ENV= for all.
ROLES := MEMORY READER JUDGE PROBE EMBEDDER
KNOWN := PYTHON VENV PROFILE PAPER TABLE TABLES FIGURE LOCAL LOCAL_EMBEDDER BASE_URL MODEL JUDGE EMBEDDER KEY_ENV PRICES DATA QUESTIONS SIZE BACKBONE \
  RESULTS YES MAX_USD ARGS MEMORY DATASET ADDRESS NAME SHARE CSV COUNTS SIZES ASKED USERS LIMIT SWEEP SET RUN $(ROLES:=_BASE_URL) $(ROLES:=_KEY_ENV)
GIVEN := $(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))
UNKNOWN := $(filter-out $(KNOWN) MAKE% -%,$(GIVEN))
ifneq ($(UNKNOWN),)
  $(error no variable called $(UNKNOWN); there are $(KNOWN). Settings of the command go into ARGS="name=value")
endif
# The words of the recipes that run, and for OVERRIDES those of its definition, name the variables that they read.
ifneq ($(and $(GIVEN),$(MAKECMDGOALS)),)
words_from = $(shell sed -n '/^$(subst /,\/,$(1))/,/^$$/p' $(firstword $(MAKEFILE_LIST)) | tr -cs 'A-Z_\n' ' ')
RECIPES := $(foreach goal,$(MAKECMDGOALS),$(call words_from,$(goal):))
READ := PYTHON VENV $(RECIPES) $(if $(filter TABLE_FILE,$(RECIPES)),PAPER TABLE) \
  $(if $(filter OVERRIDES BESIDES_MODELS,$(RECIPES)),$(call words_from,MODELS = ) $(ROLES:=_BASE_URL) $(ROLES:=_KEY_ENV))
UNREAD := $(filter-out $(READ) MAKE% -%,$(GIVEN))
ifneq ($(UNREAD),)
  $(error make $(MAKECMDGOALS) does not read $(UNREAD). Settings of the command go into ARGS="name=value")
endif
endif
shell_quoted = '$(subst ','\'',$(1))'
# A variable's text as it was typed: `value` leaves a $ in it alone. `given` makes a setting of it, `option` an option with its value.
given = $(if $(value $(1)),$(call shell_quoted,$(2)=$(value $(1))))
option = $(if $(value $(1)),$(2) $(call shell_quoted,$(value $(1))))
# Ends with the variable that a target needs, where the command would name its own option.
need = $(if $(value $(1))$(ARGS),,$(error make $@ needs $(1)=: see make help))

MODELS = $(call given,MODEL,models.memory) $(call given,MODEL,models.reader) $(call given,$(if $(value JUDGE),JUDGE,MODEL),models.judge) \
  $(call given,EMBEDDER,models.embedder)
BESIDES_MODELS = profile=$(PROFILE) $(call given,LOCAL,local.model) $(call given,LOCAL_EMBEDDER,local.embedder) $(call given,BASE_URL,endpoint.base_url) \
  $(call given,KEY_ENV,endpoint.key_env) $(call given,PRICES,prices) $(call given,DATA,data.root) $(if $(value DATA),data.source=real) \
  $(call given,$(if $(value QUESTIONS),QUESTIONS,SIZE),data.size) $(call given,BACKBONE,backbone) $(call given,RESULTS,results) $(call given,YES,yes) \
  $(call given,MAX_USD,max_usd) $(foreach role,$(ROLES),$(call given,$(role)_BASE_URL,endpoints.$(call lower,$(role)).base_url) \
  $(call given,$(role)_KEY_ENV,endpoints.$(call lower,$(role)).key_env))
OVERRIDES = $(BESIDES_MODELS) $(MODELS)

# TABLE= is the number in the paper (4, a1) or a file of conf/table (segtreemem_t4).
TABLE_FILE = $(if $(findstring _,$(TABLE)),$(TABLE),$(PAPER)_$(if $(filter a%,$(TABLE)),$(TABLE),t$(TABLE)))
lower = $(subst MEMORY,memory,$(subst READER,reader,$(subst JUDGE,judge,$(subst PROBE,probe,$(subst EMBEDDER,embedder,$(1))))))

.PHONY: help run local-model table-local table-ray conformance product gateway new-memory notebooks dist architecture coverage doctor test style suite integration quick reproduce-table4 reproduce reproduce-all report pareto paper-table card bench torture regress regress-update audit change growth load calibrate sweep judge-card order-test claims claims-site \
  fetch clean distclean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {line = sprintf("%-23s", $$1); count = split($$2, word, " "); \
	  for (i = 1; i <= count; i++) {if (length(line word[i]) > 79) {print line; line = sprintf("%-23s", "")}; line = line " " word[i]}; print line}' \
	  $(MAKEFILE_LIST)

fits = $(1) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null

release = $(1) -c 'import sys; print(sys.version_info[:2])' 2>/dev/null
# `PYTHON=python3.12` where the environment holds another Python: it is made again, because the words of the command line count.
NAMED := $(filter command,$(firstword $(origin PYTHON)))
ifneq ($(if $(NAMED),$(shell $(call release,$(PYTHON)))),$(if $(NAMED),$(shell $(call release,$(PY)))))
$(VENV)/.installed: another-python
endif
.PHONY: another-python
another-python:

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(call fits,$(PYTHON)) || { echo "error: $(PYTHON) is $$($(PYTHON) --version 2>&1); memsys-bench needs Python 3.11, 3.12 or 3.13: make … PYTHON=python3.12" >&2; exit 1; }
	@test ! -d $(VENV) || { $(call fits,$(PY))$(if $(NAMED), && test "$$($(call release,$(PY)))" = "$$($(call release,$(PYTHON)))"); } || { echo "$(VENV) holds another Python or is incomplete; it is made again" >&2; rm -rf $(VENV); }
	$(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt uv
	@# uv takes a fifth of pip's time, but reads no index of pip's settings.
	@{ ! $(PY) -m pip config list | grep -q '\.index-url' && UV_LINK_MODE=copy $(VENV)/bin/uv pip install --quiet --python $(PY) $(OURS); } \
	  || { echo "pip installs the packages, which takes a minute or two" >&2; $(PIP) $(OURS); }
	@touch $@

reproduce-table4: $(VENV)/.installed ## SegTreeMem Table 4, ours next to the published numbers (PAPER= for the other papers' table 4)
	$(PY) -m scripts reproduce table=$(PAPER)_t4 $(OVERRIDES) $(ARGS)

reproduce: $(VENV)/.installed ## any table or figure: PAPER=timem TABLE=3, PAPER=memtree TABLE=a1, PAPER=timem FIGURE=3, PAPER=memtree FIGURE=a4
ifdef FIGURE
	$(PY) -m scripts figures figure=$(PAPER)_f$(FIGURE) $(OVERRIDES) $(ARGS)
else
	$(PY) -m scripts reproduce table=$(TABLE_FILE) $(OVERRIDES) $(ARGS)
endif

reproduce-all: $(VENV)/.installed ## every table and every figure of the four papers, and what each took
	$(PY) -m scripts reproduce-all $(OVERRIDES) $(ARGS)

report: $(VENV)/.installed ## everything that has been run as pages to open in a browser: TABLES="segtreemem_t4-smoke" for some of it
	$(PY) -m scripts report $(call shell_quoted,$(or $(value RESULTS),results)) $(call option,DATA,--data) $(if $(TABLES),--tables $(TABLES)) $(ARGS)

pareto: $(VENV)/.installed ## quality against cost of a table that has been run: PAPER= TABLE=
	$(PY) -m scripts tables pareto $(TABLE_FILE) $(OVERRIDES) $(ARGS)

paper-table: $(VENV)/.installed ## LaTeX of a table that has been run: TABLE=segtreemem_t4
	$(PY) -m scripts paper-table $(TABLE_FILE) $(OVERRIDES) $(ARGS)

card: $(VENV)/.installed ## a results card, with all that a reviewer asks: RUN=results/runs/… or TABLE=segtreemem_t4
	$(PY) -m scripts card $(if $(value RUN),$(call option,RUN),$(TABLE_FILE) $(OVERRIDES)) $(ARGS)

run: $(VENV)/.installed ## one memory on one data set: MEMORY=bm25 DATASET=locomo QUESTIONS=20 (your own settings: ARGS="memory.build.k=5")
	$(PY) -m scripts run memory=$(or $(MEMORY),bm25) dataset=$(or $(DATASET),locomo) $(OVERRIDES) $(ARGS)

table-ray: $(VENV)/.installed ## a table on a Ray cluster: ADDRESS=ray://head:10001 (without: the cluster of this machine; local starts one here) PAPER= TABLE=
	$(PY) -m pip install --quiet --disable-pip-version-check $(WHEELS) -c constraints.txt -e '.[ray]'
	$(PY) -m scripts reproduce table=$(TABLE_FILE) executor=ray $(or $(call given,ADDRESS,ray.address),ray.address=auto) $(OVERRIDES) $(ARGS)

local-model: $(VENV)/.installed ## fetch a model that runs on this machine (NAME=smollm2-135m, 98 MB), and llama.cpp to run it
	$(PY) -m pip install --quiet --disable-pip-version-check $(WHEELS) -c constraints.txt -e '.[local]'
	$(PY) -m scripts local-model $(or $(NAME),smollm2-135m)

table-local: local-model ## a first table with a real model on this machine: LOCAL=path/to/model.gguf for another than the smallest
	$(PY) -m scripts reproduce table=local $(subst profile=smoke,profile=local,$(OVERRIDES)) $(ARGS)

new-memory: $(VENV)/.installed ## start a memory of your own: NAME=mine writes its module, its settings and its prompt
	$(call need,NAME)$(PY) -m scripts new-memory $(NAME)

conformance: $(VENV)/.installed ## write test facts through a memory's own interface and name what it does wrong, before any score: MEMORY=mem0_http
	$(PY) -m scripts conformance memory=$(or $(MEMORY),bm25) $(call given,DATASET,dataset) $(OVERRIDES) $(ARGS)

product: $(VENV)/.installed ## install a released memory product into an environment of its own: NAME=mem0ai (without NAME: list them; NAME=all says their sizes first)
	$(PY) -m scripts product $(NAME) $(ARGS)

gateway: $(VENV)/.installed ## an OpenAI-compatible server in front of our cache and meter: BASE_URL= MODEL= EMBEDDER= KEY_ENV= MAX_USD= PRICES= ARGS="--mode replay"
	$(call need,MODEL)$(PY) -m scripts gateway $(call option,MODEL,--model) $(call option,BASE_URL,--base-url) $(call option,EMBEDDER,--embedder) $(call option,KEY_ENV,--key-env) \
	  $(call option,MAX_USD,--max-usd) $(call option,PRICES,--prices) $(ARGS)

doctor: $(VENV)/.installed ## what an endpoint takes, ignores and leaves out: BASE_URL= MODEL= EMBEDDER= KEY_ENV=; writes conf/llm/<name>.yaml
	$(call need,MODEL)$(PY) -m scripts doctor $(call option,MODEL,--model) $(call option,BASE_URL,--base-url) $(call option,EMBEDDER,--embedder) \
	  $(call option,EMBEDDER_BASE_URL,--embedder-base-url) $(call option,KEY_ENV,--key-env) $(ARGS)

test: style suite ## style, types, and the whole test suite (make -j 2 test: both at once)

style: $(VENV)/.installed ## ruff and mypy
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

suite: $(VENV)/.installed ## the whole test suite without style and types
	@# Without bytecode each worker would compile every module and test again, ten seconds of its core: collected once before, they find it.
	@ls tests/scripts/__pycache__/*pytest*.pyc >/dev/null 2>&1 || $(PY) -m pytest -n0 -qq --collect-only -m "not integration" >/dev/null || true
	@# Many tests wait for a process: three workers fill two cores.
	workers=$${PYTEST_XDIST_AUTO_NUM_WORKERS:-$$($(PY) -c 'import os; print(max(1, os.cpu_count() * 3 // 2))')}; \
	$(PY) -m pytest -n $$workers --dist worksteal -m "not integration"

integration: $(VENV)/.installed ## the tests that need an optional program (a browser, Ray, LaTeX, a released product) or play whole experiments
	$(PY) -m pytest -n auto --dist worksteal -m integration $$(grep -rl --include='test_*.py' mark.integration tests)

quick: $(VENV)/.installed ## style and the fast half of the tests, in a minute: before every commit
	$(VENV)/bin/ruff check .
	MEMSYS_MUTATIONS=10 $(PY) -m pytest -n auto --dist worksteal -m "not slow and not data and not integration"

bench: $(VENV)/.installed ## speed against the shipped mock endpoint, as ratios
	$(PY) -m scripts bench $(ARGS)

torture: $(VENV)/.installed ## kills, faults, bad replies, broken files, full disks, jumping clocks, attacks, Ray: SHARE=0.1 for a tenth of the 40 minutes
	$(PY) -m scripts torture $(if $(SHARE),--share $(SHARE)) $(ARGS)

regress: $(VENV)/.installed ## rerun the small offline subset and compare with results/regression exactly
	$(PY) -m scripts regress

regress-update: $(VENV)/.installed ## accept the present numbers as the new regression reference
	$(PY) -m scripts regress --update

audit: $(VENV)/.installed ## what does not add up in the published tables, or in yours: CSV=my_table.csv COUNTS=282,321,96,841
	$(if $(CSV),$(call need,COUNTS))$(if $(COUNTS),$(call need,CSV))$(PY) -m scripts audit $(call option,CSV) $(if $(COUNTS),--counts $(COUNTS)) $(ARGS)

change: $(VENV)/.installed ## does a memory keep up when facts change: MEMORY=mem0 DATASET=locomo QUESTIONS=640 a family (without MEMORY: all of ours)
	$(PY) -m scripts change $(if $(MEMORY),memory=$(MEMORY)) $(if $(DATASET),dataset=$(DATASET)) $(OVERRIDES) $(ARGS)

growth: $(VENV)/.installed ## recall, cost and bytes as one history grows: MEMORY=memtree SIZES=100,200,400 ASKED=100 questions a size (0: costs only)
	$(PY) -m scripts growth memory=$(or $(MEMORY),segtree) $(call given,DATASET,dataset) $(if $(SIZES),'sizes=[$(SIZES)]') questions=$(or $(ASKED),100) $(OVERRIDES) $(ARGS)

load: $(VENV)/.installed ## many users of one memory at once, latency, lag, errors, isolation: MEMORY=bm25 USERS=1,10,100
	$(PY) -m scripts load memory=$(or $(MEMORY),bm25) $(call given,DATASET,dataset) $(if $(USERS),'users=[$(USERS)]') $(OVERRIDES) $(ARGS)

calibrate: $(VENV)/.installed ## fit SegTreeMem's cosine threshold to an embedder on one history: EMBEDDER=text-embedding-3-small
	$(PY) -m scripts calibrate $(call given,MEMORY,memory) $(call given,DATASET,dataset) $(OVERRIDES) $(ARGS)

judge-card: $(VENV)/.installed ## how often a judge is wrong, on answers made from the data: JUDGE=mem0 DATASET=locomo LIMIT=50
	$(PY) -m scripts judge-card --judge $(or $(JUDGE),mem0) --dataset $(or $(DATASET),locomo) $(if $(LIMIT),--limit $(LIMIT)) $(BESIDES_MODELS) $(call given,EMBEDDER,models.embedder) $(call given,MODEL,models.judge) $(ARGS)

order-test: $(VENV)/.installed ## does a memory depend on the order in which it gets the sessions: MEMORY="bm25 segtree_td" DATASET=locomo ARGS="--orders 5 --kind turns"
	$(PY) -m scripts order-test $(or $(MEMORY),bm25) --dataset $(or $(DATASET),locomo) $(OVERRIDES) $(ARGS)

sweep: $(VENV)/.installed ## a sweep of a paper, resumed where it stopped: SWEEP=segtree_propagation (conf/sweep lists them)
	$(PY) -m scripts sweep sweep=$(or $(SWEEP),segtree_propagation) $(OVERRIDES) $(ARGS)

claims: $(VENV)/.installed ## audit published scores from the answers that their owners published: DATA= (fetch SET=answers gets them)
	$(PY) -m scripts claims $(call option,DATA,--data) $(call option,RESULTS,--results) $(ARGS) \
	  $(call given,MAX_USD,max_usd) $(call given,PRICES,prices) $(call given,YES,yes)

claims-site: $(VENV)/.installed ## the same audit as a static site, to open in a browser or to publish: DATA= ARGS="--url https://… --contact …"
	$(PY) -m scripts claims-site --date "$$(date +%F)" $(call option,DATA,--data) $(call option,RESULTS,--results) $(ARGS)

fetch: $(VENV)/.installed ## download data sets: SET=locomo, or all; into DATA=
	$(PY) -m scripts fetch $(or $(SET),all) $(call option,DATA,--data) $(ARGS)

# Without the times of its cells, which would be a change at every run; jupyter-execute always records them.
define EXECUTE
import nbformat, sys
from nbclient import NotebookClient
for path in sys.argv[1:]:
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, kernel_name="python3", record_timing=False, resources={"metadata": {"path": "notebooks"}}).execute()
    nbformat.write(notebook, path)
endef
export EXECUTE

notebooks: $(VENV)/.installed ## run the notebooks again, offline, and keep their outputs
	MEMSYS_RESULTS=$$(mktemp -d) $(PY) -c "$$EXECUTE" notebooks/*.ipynb

dist: $(VENV)/.installed ## wheel and sdist of the commit, the same bytes each time (RELEASING.md)
	$(PY) -m scripts dist $(ARGS)

architecture: $(VENV)/.installed ## draw the packages in ARCHITECTURE.md from the imports
	$(PY) -m scripts architecture

clean: ## remove the environment and what building left; runs, tables and the cache of paid answers stay
	rm -rf $(VENV) build *.egg-info

distclean: clean ## also remove runs and the cache of paid answers, after asking
	@printf 'Delete results/runs and results/cache.sqlite with every paid answer? Type yes: '; read -r answer; \
	  if [ "$$answer" = yes ]; then rm -rf results/runs results/cache.sqlite*; else echo kept; fi

coverage: $(VENV)/.installed ## simulate coverage, size and power of what tables print, into docs/statistics.md (ten minutes on two cores; SHARE=0.1 for a tenth)
	$(PY) -m scripts coverage $(if $(SHARE),--share $(SHARE))
