# `just` lists what there is; every recipe is one line of shell you can type yourself.

default:
    @just --list

# everything that must pass before a commit lands
test:
    scripts/test
