# A driver for tests: keeps the contract in the simplest way and runs the code as bash. What it adds, for hostile tests:
# the code can use $TOKEN, $FOLDER (E) and $D, as user code that read the driver's memory could. $SEEDS are the seeds of all
# renewals. With a file $D/../../deaf it does not answer to one.
D=$1

# The code runs in a function, because a handler's `return` ends that at any point: also between two commands, where a
# handler that only leaves a note would let the next one start. An interrupt that came earlier has left its mark.
run() { [ -n "$INTERRUPTED" ] || [ -e "$FOLDER/interrupted" ] || eval "$1"; }

trap '' INT
echo ready > "$D/events"
while true; do
  read -r word ID TOKEN has last name < "$D/control" || continue
  if [ "$word" = renew ]; then
    SEEDS="$SEEDS $ID"
    [ -e "$D/../../deaf" ] || echo renewed > "$D/events"
    continue
  fi
  [ "$word" = exec ] || continue
  FOLDER="$D/$ID"
  exec > "$FOLDER/out" 2> "$FOLDER/err" < /dev/null
  if ((has & 1)); then exec < "$FOLDER/in"; fi
  ((has & 2)) && while IFS= read -r -d '' entry; do export "$entry"; names="$names ${entry%%=*}"; done < "$FOLDER/env"
  text=$(cat "$FOLDER/code")
  INTERRUPTED=
  trap 'INTERRUPTED=yes; return 130 2> /dev/null' INT
  run "$text"
  code=$?
  if [ "$last" = 1 ]; then
    trap 'exit 130' INT # also within the code's trap on EXIT
    exit "$code"
  fi
  trap '' INT
  if [ -n "$INTERRUPTED" ] || [ -e "$FOLDER/interrupted" ]; then code=130; fi
  for one in $names; do unset "$one"; done
  names=
  exec > "$D/idle.out" 2> "$D/idle.err" < /dev/null
  echo "$TOKEN done $code" > "$D/events"
done
