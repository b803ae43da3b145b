#!/bin/sh
# Wait until the demo is ready at an address, and ask it a question. Fails if it does not answer, or wrongly.
#
#   scripts/smoke.sh http://127.0.0.1:8000
set -eu
url=${1:?the address of a service, such as http://127.0.0.1:8000}
curl --silent --show-error --fail --output /dev/null --retry 90 --retry-delay 2 --retry-all-errors "$url/ready"
answer=$(curl --silent --show-error --fail "$url/v1/chat/completions" --header 'content-type: application/json' --data \
    '{"model": "rayllm-demo", "messages": [{"role": "user", "content": "What is the capital of France?"}]}')
case $answer in
    *"The capital of France is Paris."*) echo "$url answers" ;;
    *) echo "smoke: $url answered: $answer" >&2; exit 1 ;;
esac
