# The human's face of the build; CMakeLists.txt is the build itself.  `make help` lists the targets.
#
#   BUILD=DIR         where the release build goes (build)      JOBS=N     parallel compilers and tests (all cores)
#   PROMPT=TEXT KV=PLAN N=N RUN_FLAGS=...   of `make run`       MODEL=FILE another model for `make run`, `serve` and `bench`
#   CUDA=1|0          with the device cuda, or without (when not given: as the build folder was made, at first without)
#   FUZZ_SECONDS=N    for each fuzz target (20)                 PREFIX=DIR DESTDIR=DIR   of `make install`

BUILD        ?= build
JOBS         ?= $(shell nproc 2>/dev/null || echo 2)
PREFIX       ?= /usr/local
FUZZ_SECONDS ?= 20
PROMPT       ?= Give me five tips for a good night's sleep.
KV           ?= t4
N            ?= 160
MODEL        ?=
RUN_FLAGS    ?=
BENCH_FLAGS  ?=
CUDA         ?=
export PROMPT

# Sanitizers place their shadow memory at fixed addresses and collide with the widest address randomisation.
NOASLR := $(shell setarch -R true 2>/dev/null && echo setarch -R)
CTEST  := ctest --output-on-failure --no-tests=error -j $(JOBS)
SOURCES := $(shell find src include tests bench examples -name '*.[ch]' 2>/dev/null)

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
.PHONY: all run serve check check-asan check-guard check-tsan check-neon fuzz-build fuzz bench docs deb house format format-check tidy install clean help

all: ## build the release program, build/tern
	@tools/packages build
	@test -e $(BUILD)/Makefile -a -z "$(CUDA)" || cmake --preset release -B $(BUILD) $(if $(CUDA),-DTERN_CUDA=$(if $(filter 0,$(CUDA)),OFF,ON))
	@cmake --build $(BUILD) -j $(JOBS) --target tern

run: all ## fetch and calibrate a small model (once) and let it answer PROMPT with a compressed KV cache
	@test -n "$(MODEL)" || tools/packages run
	@model='$(MODEL)'; test -n "$$model" || model=$$(tools/fetch-model smollm2); \
	test -e "$$model.ternkv" || $(BUILD)/tern doctor --calibrate -m "$$model" >/dev/null; \
	$(BUILD)/tern run -m "$$model" -p "$$PROMPT" --kv $(KV) -n $(N) $(RUN_FLAGS)

serve: all ## fetch a small model (once) and serve it; the address is printed
	@test -n "$(MODEL)" || tools/packages run
	@model='$(MODEL)'; test -n "$$model" || model=$$(tools/fetch-model smollm2); \
	exec $(BUILD)/tern serve -m "$$model" --kv $(KV) $(RUN_FLAGS)

check: ## build and run every test that needs no GPU, no download and no Python
	@tools/packages build check
	@cmake --preset release -B $(BUILD)
	@cmake --build $(BUILD) -j $(JOBS)
	@cd $(BUILD) && $(CTEST)

check-asan: ## the same tests under AddressSanitizer and UndefinedBehaviorSanitizer; LONG=1: all of the longest ones
	@tools/packages build check
	@cmake --preset asan -B $(BUILD)-asan -DTERN_TEST_LONG=$(if $(LONG),ON,OFF)
	@cmake --build $(BUILD)-asan -j $(JOBS)
	@cd $(BUILD)-asan && $(NOASLR) $(CTEST)

check-guard: ## models, engines and caches on the device `guard`
	@tools/packages build check
	@cmake --preset release -B $(BUILD)
	@cmake --build $(BUILD) -j $(JOBS)
	@cd $(BUILD) && $(CTEST) -C guard -R "^guard/"

check-tsan: ## the tests that start threads, under ThreadSanitizer
	@tools/packages build check
	@cmake --preset tsan -B $(BUILD)-tsan
	@cmake --build $(BUILD)-tsan -j $(JOBS) --target threaded_tests
	@cd $(BUILD)-tsan && TSAN_OPTIONS="halt_on_error=1 $$TSAN_OPTIONS" $(NOASLR) $(CTEST) -L threads

check-neon: ## cross build for AArch64; kernels, engine and parsers under qemu-user
	@tools/packages neon
	@tools/sysroot $(BUILD)-neon/sysroot
	@cmake --preset neon -B $(BUILD)-neon
	@cmake --build $(BUILD)-neon -j $(JOBS)
	@tools/isa_scan.sh $(BUILD)-neon
	@cd $(BUILD)-neon && $(CTEST)

fuzz-build:
	@tools/packages build check ci
	@cmake --preset fuzz -B $(BUILD)-fuzz
	@cmake --build $(BUILD)-fuzz -j $(JOBS) --target fuzzers

fuzz: fuzz-build ## every fuzz target for FUZZ_SECONDS, JOBS at a time, starting from tests/fuzz/corpus
	@ls $(BUILD)-fuzz/tests/fuzz/fuzz_* | xargs -P $(JOBS) -I '{}' sh -c ' \
	    target={}; area=$${target##*/fuzz_}; found=$(BUILD)-fuzz/corpus/$$area; log=$(BUILD)-fuzz/$$area.log; \
	    mkdir -p $$found; \
	    $(NOASLR) $$target -max_total_time=$(FUZZ_SECONDS) -timeout=20 -rss_limit_mb=3000 -print_final_stats=1 \
	        -artifact_prefix=$(BUILD)-fuzz/$$area- $$found tests/fuzz/corpus/$$area >$$log 2>&1 || \
	        { echo "fuzz $$area FAILED"; tail -n 60 $$log; exit 1; }; \
	    echo "fuzz $$area: $(FUZZ_SECONDS) s, new inputs in $$found" \
	        $$(grep -E "number_of_executed_units|peak_rss_mb" $$log)'

bench: all ## kernels against their plain C form; with MODEL=FILE also the model's prompt and decode speed
	@tools/packages check
	@cmake --preset release -B $(BUILD) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target checkasm
	@$(BUILD)/tests/checkasm/checkasm --bench
	@test -z "$(MODEL)" || $(BUILD)/tern bench -m "$(MODEL)" $(BENCH_FLAGS)

docs: ## write docs/models.md anew: what runs from which files with which KV cache
	@tools/packages build check
	@cmake --preset release -B $(BUILD) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target test_docs_models
	@$(BUILD)/tests/test_docs_models --write docs/models.md >/dev/null 2>&1 || $(BUILD)/tests/test_docs_models

house: all ## the rules of the house: layers, sizes, headers, symbols, instruction sets, links
	@tools/packages ci
	@cmake --build $(BUILD) -j $(JOBS) --target ternlib ternkv
	@tools/house.py --build $(BUILD)
	@tools/isa_scan.sh $(BUILD)

format: ## rewrite all sources by .clang-format
	@tools/packages ci
	@clang-format -i $(SOURCES)

format-check:
	@tools/packages ci
	@clang-format --dry-run -Werror $(SOURCES)

tidy: ## clang-tidy over src
	@tools/packages build ci
	@cmake --preset release -B $(BUILD) >/dev/null
	@JOBS=$(JOBS) tools/tidy $(BUILD)

install: all ## program, libraries, headers, manual page and bash completion into PREFIX
	@cmake -S . -B $(BUILD) -DCMAKE_INSTALL_PREFIX="$(PREFIX)" >/dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target ternlib ternkv extras
	@cmake --install $(BUILD)

deb: all ## a Debian package for this machine's architecture, in build/
	@command -v dpkg-shlibdeps >/dev/null || { echo "make deb needs dpkg-shlibdeps: apt-get install dpkg-dev" >&2; exit 1; }
	@cmake -S . -B $(BUILD) -DCMAKE_INSTALL_PREFIX=/usr >/dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target ternlib ternkv extras
	@tools/make-deb $(BUILD)

clean: ## remove all build folders
	rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-tsan $(BUILD)-fuzz $(BUILD)-neon

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | sort | while IFS='	' read -r target text; do \
	    printf '  make %-12s %s\n' "$$target" "$$text"; done
