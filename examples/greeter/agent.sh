#!/bin/sh
# A coding agent without a model: it runs the tests, mends what they show, adds a case, runs them
# again. Any other agent is started the same way.
echo "agent: the tests as they are"
make -s test

echo "agent: the last name is never greeted; fixing the loop"
sed -i 's/i < argc - 1/i < argc/' greet.c

echo "agent: adding a case with two names"
printf 'Ada\nGrace\n' > cases/two.txt

echo "agent: the tests again"
make -s test
