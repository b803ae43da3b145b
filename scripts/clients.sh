#!/bin/sh
# Install the clients that docs/clients.md runs into .venv-clients, at the versions in tests/integration/clients. Those for
# Node are left out where there is no npm. A second run with nothing changed does nothing.
set -eu
cd "$(dirname "$0")/.."
lists=tests/integration/clients
venv=.venv-clients
stamp=$(cat "$lists"/*.txt "$lists"/package.json | cksum)
[ -f $venv/installed ] && [ "$(cat $venv/installed)" = "$stamp" ] && exit 0

rm -rf $venv
.venv/bin/python -m venv $venv
# guidellm needs PyTorch: the version of the CPU engine, whose CPU build may be in a local folder.
grep '^torch==' requirements/cpu.txt > $venv/torch.txt
$venv/bin/pip install --quiet --disable-pip-version-check --requirement $lists/requirements.txt --constraint $venv/torch.txt
.venv/bin/python -m venv $venv/aider
if $venv/aider/bin/pip install --quiet --disable-pip-version-check --requirement $lists/aider.txt; then
    ln -s ../aider/bin/aider $venv/bin/aider
else
    echo "clients: aider was not installed, so its test is skipped" >&2
fi
if command -v npm >/dev/null 2>&1; then
    cp $lists/package.json $venv/
    npm install --prefix $venv --no-package-lock --no-audit --no-fund --silent
    # n8n takes 3 GB. Scripts of its packages fetch and build much that its test does not need; it needs sqlite3.
    node=node-$(node -p 'process.platform + "-" + process.arch')
    mkdir $venv/n8n
    modules=$PWD/$venv/n8n/node_modules
    if npm install --prefix $venv/n8n --ignore-scripts --no-package-lock --no-audit --no-fund --silent \
        $(sed "/^#/d; s/^node@/$node@/" $lists/n8n.txt) &&
        PATH="$modules/$node/bin:$PATH" npm_config_nodedir="$modules/$node" npm rebuild --prefix $venv/n8n --silent sqlite3; then
        printf '#!/bin/sh\nPATH="%s:$PATH" exec "%s" "$@"\n' "$modules/$node/bin" "$modules/.bin/n8n" > $venv/bin/n8n
        chmod +x $venv/bin/n8n
    else
        echo "clients: n8n was not installed, so its test is skipped" >&2
    fi
fi
echo "$stamp" > $venv/installed
