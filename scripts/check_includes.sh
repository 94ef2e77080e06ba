#!/bin/sh
# Include direction (docs/design.md, "Modules"): a file may include headers of its own module
# and of the modules listed for it; *_int.h only from its own folder; siblings stay blind to
# each other. Run from the project root; prints each violation and fails.
set -eu
find src -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def' | sort | xargs awk '
function module(path,   parts, n) {
    n = split(path, parts, "/")
    if (parts[1] == "backend" && n > 2) return "backend/" parts[2]
    return parts[1]
}
function folder(path) { sub(/\/[^\/]*$/, "", path); return path }
BEGIN {
    allow["base"] = " "
    allow["tensor"] = " base "
    allow["formats"] = " base tensor "
    allow["text"] = " base tensor formats "
    allow["quant"] = " base tensor formats "
    allow["backend"] = " base tensor backend/ref backend/cpu backend/cuda "
    allow["backend/ref"] = " base tensor backend "
    allow["backend/cpu"] = " base tensor backend "
    allow["backend/cuda"] = " base tensor backend "
    allow["model"] = " base tensor formats backend "
    allow["engine"] = " base tensor model backend text "
    allow["server"] = " base text engine "
    allow["api"] = " base tensor formats text backend model engine server "
    # Commands use the public header. The rows below are the allow-list of internals.
    allow["cmd"] = " base "
    file_allow["cmd/cmd_inspect.c"] = " base tensor formats backend model "
    file_allow["cmd/cmd_opcheck.c"] = " base tensor backend "
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
    file = FILENAME; sub(/^src\//, "", file)
    target = $0; sub(/^[^"]*"/, "", target); sub(/".*/, "", target)
    from = module(file)
    if (target == "plumb.h") {
        if (from != "api" && from != "cmd") { print FILENAME ":" FNR ": only api and cmd may include plumb.h"; bad = 1 }
        next
    }
    to = module(target)
    if (target ~ /_int\.h$/ && folder(target) != folder(file)) {
        print FILENAME ":" FNR ": " target " is internal to " folder(target); bad = 1
    }
    list = (file in file_allow) ? file_allow[file] : allow[from]
    if (list == "") { print FILENAME ":" FNR ": unknown module " from; bad = 1; next }
    if (to != from && index(list, " " to " ") == 0) {
        print FILENAME ":" FNR ": " from " may not include " target; bad = 1
    }
}
END { exit bad }'
