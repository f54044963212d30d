# The few verbs of hayfork. Everything behind them is `cargo xtask`; see xtask/.
#
#   make run                         set everything up, then run an example in a VM
#   make run CODE='print(6 * 7)'     … or a program from the command line
#   make run FILE=program.py         … or from a file; ARGS adds options of `hayfork run`
#   make test                        set everything up, then run all tests
#   make bench-rig                   measure the monitor in instructions, in the nested rig (tests/rig/)
#   make bench | lint | images | clean

.PHONY: run test bench bench-rig lint images clean bootstrap
.DEFAULT_GOAL := run

# Exported, so that quotes and line breaks in it survive.
export CODE FILE ARGS

run: bootstrap
	@if [ -n "$$CODE" ]; then exec cargo xtask run $$ARGS --code "$$CODE"; \
	elif [ -n "$$FILE" ]; then exec cargo xtask run $$ARGS "$$FILE"; \
	else exec cargo xtask run $$ARGS --example; fi

test bench bench-rig lint images clean: bootstrap
	@exec cargo xtask $@ $$ARGS

# A C linker, Python and Rust, without which not even xtask can be built.
bootstrap:
	@sh xtask/bootstrap.sh
