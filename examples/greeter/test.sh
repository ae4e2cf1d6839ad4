#!/bin/sh
# Every line of a case is a name, and every name is greeted.
status=0
for case in cases/*.txt; do
    expected=$(sed 's/.*/Hello, &!/' "$case")
    if [ "$(xargs ./greet < "$case")" = "$expected" ]; then
        echo "ok      $case"
    else
        echo "FAILED  $case"
        status=1
    fi
done
exit $status
