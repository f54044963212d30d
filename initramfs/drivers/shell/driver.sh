# The shell driver: functions for the command that the file `launch` starts bash with (bash 5.2; nothing but bash is
# needed).
#
# User code runs in this very shell, by `eval` at top level, so that everything it sets stays set: not inside a function
# (`declare` would be local) and not inside a loop (`break` would end it). So the program is a long list of units
#
#     __hayfork_next || __hayfork_fail; builtin eval "$__hayfork_text"
#
# that ends with an `eval` of the same list. `__hayfork_next` waits for an execution and makes the text of it: what
# the user's options and traps need, the `eval` of the user's code, and `__hayfork_done ID TOKEN` after it. The
# agent's token is part of that text, which bash has read when the user's code starts: it is in no variable that user
# code could set or unset. Everything is on the first line of what `bash -c` got, so line numbers in messages are
# those of the user's code.
#
# If user code ends the shell (`exit 3`, a failure under `set -e`, Ctrl-C), the EXIT trap writes down all variables,
# functions, aliases, options and traps, tells the agent the exit code, and replaces the process by a new bash that
# reads them and goes on: same process number, same descriptors, same folder. If user code has put an EXIT trap of its
# own in the place of ours the process does end, and the agent makes a new one; such a trap of an earlier execution is
# run before ours.
#
# The last execution of a context ends with the shell, as a script does: there is no EXIT trap of ours, and behind the
# user's code stands an `exit` with its code.
#
# User code may define functions and aliases with any name. The driver's functions are read-only and were read when
# there were no aliases. They call builtins by `builtin`; should the user have a function of that name that gets in
# the way, it is removed. Options that would change what the driver does are off while it works (`__hayfork_calm`).
# Not kept from one execution to the next: `$?` and the descriptors 0 to 2.

builtin trap 'builtin :' INT # until it is set in earnest

# The context's folder, this file, and the shell itself.
declare -ra __hayfork=("$1" "${BASH_SOURCE[0]}" "$BASH")

# Makes __hayfork_text the list of a hundred units, in groups: bash needs stack for each command of a list that is not
# in a group of its own.
__hayfork_program() {
    builtin printf -v __hayfork_text '__hayfork_next||__hayfork_fail;builtin eval "$__hayfork_text";%.0s' {1..10}
    builtin printf -v __hayfork_text "{ %s };" "$__hayfork_text" "$__hayfork_text" "$__hayfork_text" "$__hayfork_text" \
        "$__hayfork_text" "$__hayfork_text" "$__hayfork_text" "$__hayfork_text" "$__hayfork_text" "$__hayfork_text"
    __hayfork_text+='__hayfork_program;builtin eval "$__hayfork_text"'
}

# First thing after user code, with its output thrown away (a trace or a DEBUG trap would speak): keeps the exit code
# $1 and the options, and makes the shell behave.
__hayfork_calm() {
    __hayfork_status=$1 __hayfork_options=$SHELLOPTS __hayfork_shopt=$BASHOPTS __hayfork_probe=
    builtin printf -v __hayfork_probe ok
    [[ $__hayfork_probe == ok ]] || {
        # In POSIX mode no function can stand in the way of `unset`.
        POSIXLY_CORRECT=1
        \unset -f builtin
        __hayfork_no_posix
        builtin printf -v __hayfork_probe ok
        [[ $__hayfork_probe == ok ]] || __hayfork_fail
    }
    builtin set +aefktuvxCET
    builtin shopt -u expand_aliases
}

# Makes descriptors 0, 1, 2 of the files $1, $2, $3. (`builtin exec` would open them for itself only. A function of
# the user's with that name does not count in POSIX mode.)
__hayfork_open() {
    if builtin declare -F exec >/dev/null && [[ :$SHELLOPTS: != *:posix:* ]]; then
        POSIXLY_CORRECT=1
        \exec <"$1" >"$2" 2>"$3" || __hayfork_fail
        __hayfork_no_posix
    else
        \exec <"$1" >"$2" 2>"$3" || __hayfork_fail
    fi
}

# Leaves POSIX mode, which changes other options too.
__hayfork_no_posix() {
    \unset -v POSIXLY_CORRECT
    [[ :$__hayfork_shopt: == *:inherit_errexit:* ]] || builtin shopt -u inherit_errexit
    builtin shopt -u expand_aliases
}

# Ends the shell without the help of any builtin: this expansion is an error.
__hayfork_fail() {
    __hayfork_probe=${1?the driver cannot go on}
}

# What happens on a signal that the user has no trap for; $1 is 128 + its number. User code ends. While idle, Ctrl-C
# does nothing and the others end the shell. Between the two it is too early, which is noted, or too late.
__hayfork_signal() {
    if [[ ${FUNCNAME[1]-} == __hayfork_* ]]; then
        if [[ ${FUNCNAME[1]} != __hayfork_next || ${__hayfork_id-} ]]; then
            __hayfork_noted=$1
            builtin return
        fi
        (($1 == 130)) && builtin return
    fi
    builtin exit "$1"
}

# First thing in the EXIT trap, as __hayfork_calm is after user code that does not end the shell. From here on signals
# are ignored: a trap that runs while bash reads a command substitution would break it.
__hayfork_leave() {
    __hayfork_calm "$1"
    __hayfork_all=$(builtin trap -p)
    builtin trap '' INT TERM HUP USR1 USR2 ALRM
}

# Before a user's EXIT trap: $? is the exit code, and no failure ends the trap before ours has run.
__hayfork_keep() {
    builtin set +e
    __hayfork_status=$1
    builtin return "$1"
}

# Variables $@ as they were before an execution: `-NAME` was not set, `=NAME=VALUE` was, `xNAME=VALUE` was exported too.
__hayfork_restore() {
    builtin local __hayfork_item
    for __hayfork_item; do
        case $__hayfork_item in
            -*) builtin unset -v "${__hayfork_item:1}" ;;
            x*) builtin export "${__hayfork_item:1}" ;;
            =*)
                builtin export "${__hayfork_item:1}"
                builtin export -n "${__hayfork_item:1}"
                ;;
        esac
    done
}

# Behind the last execution: the user's options again, for a trap on EXIT. Without -t, which would end that early, and
# without -v and -x, which would show what is ours.
__hayfork_again() {
    builtin local __hayfork_item
    [[ :$__hayfork_shopt: == *:expand_aliases:* ]] && builtin shopt -s expand_aliases
    for __hayfork_item in nounset noglob allexport keyword noclobber errtrace functrace errexit; do
        [[ :$__hayfork_options: == *:$__hayfork_item:* ]] && builtin set -o "$__hayfork_item"
    done
    builtin return 0
}

# Tells the agent that execution $1 with token $2 is done; the rest is for __hayfork_restore.
__hayfork_done() {
    __hayfork_restore "${@:3}"
    __hayfork_open /dev/null "${__hayfork[0]}/idle.out" "${__hayfork[0]}/idle.err"
    __hayfork_last=$1
    builtin printf '%s done %d\n' "$2" "$__hayfork_status" >"${__hayfork[0]}/events"
}

# The rest of the EXIT trap: says `done` unless that has been said, and goes on in a new bash. $1: declarations of the
# local variables of the function that called `exit`; $2: the positional parameters; the rest is for __hayfork_done.
__hayfork_exit() {
    # Assigned apart: user code may have disabled `local`, and a second `done` would be worse than a global variable.
    builtin local __hayfork_state __hayfork_said 2>/dev/null
    __hayfork_said=${__hayfork_last-}
    __hayfork_restore "${@:5}"
    __hayfork_last=$3 # for the new bash, which gets the same EXIT trap at first
    __hayfork_state=$(__hayfork_dump "$1" "$2" 2>/dev/null)
    [[ $__hayfork_said == "$3" ]] || __hayfork_done "$3" "$4"
    # Variables that a starting bash would act on are read again with the others.
    [[ ${BASH_ENV+x} ]] && builtin export -n BASH_ENV
    [[ ${SHELLOPTS@a} == *x* ]] && builtin export -n SHELLOPTS
    [[ ${BASHOPTS@a} == *x* ]] && builtin export -n BASHOPTS
    builtin shopt -u execfail
    builtin trap - INT TERM HUP USR1 USR2 ALRM # what is ignored now would be ignored for ever
    builtin exec -- "${__hayfork[2]}" --noprofile --norc \
        -c '. "$2"; __hayfork_program; builtin eval "$__hayfork_text"' bash "${__hayfork[0]}" "${__hayfork[1]}" resume <<<"$__hayfork_state"
}

# Writes commands that bring this shell's state back, in a subshell. The parameters are those of __hayfork_exit. What
# the user may have a function or an alias for is called before these exist.
__hayfork_dump() {
    builtin local __hayfork_line __hayfork_names
    builtin shopt -p
    builtin printf '%s\n' 'shopt -s extglob' 'shopt -u expand_aliases' "$__hayfork_all"
    ((${#FUNCNAME[@]} == 2)) && builtin printf 'set -- %s\n' "$2" # else they are those of a function
    builtin shopt -u localvar_unset
    # Unset from here, a local variable of the function that called `exit` gives way to the global one of its name.
    builtin mapfile -t __hayfork_names <<<"$1"
    for __hayfork_line in "${__hayfork_names[@]}"; do
        [[ $__hayfork_line =~ ^declare\ -[^\ ]+\ ([^=]+) ]] && builtin unset -v "${BASH_REMATCH[1]}"
    done
    builtin mapfile -t __hayfork_names <<<"$(builtin declare -F)"
    builtin unset -v BASH_ARGC BASH_ARGV BASH_ARGV0 BASH_COMMAND BASH_LINENO BASH_MONOSECONDS BASH_SOURCE \
        BASH_SUBSHELL BASHPID COMP_WORDBREAKS DIRSTACK EPOCHREALTIME EPOCHSECONDS FUNCNAME GROUPS HISTCMD LINENO \
        PIPESTATUS RANDOM SRANDOM _ __hayfork_noted __hayfork_said __hayfork_state __hayfork_text __hayfork_all
    builtin declare -p
    builtin alias -p
    for __hayfork_line in "${__hayfork_names[@]}"; do
        [[ ${__hayfork_line##* } == __hayfork_* ]] || builtin declare -f -- "${__hayfork_line##* }"
    done
    for __hayfork_line in "${__hayfork_names[@]}"; do
        [[ $__hayfork_line == 'declare -f '* ]] || builtin printf 'builtin %s\n' "$__hayfork_line"
    done
    builtin shopt -q extglob || builtin printf 'builtin shopt -u extglob\n'
}

# Waits for an execution, puts its descriptors in place and makes __hayfork_text of it.
__hayfork_next() {
    builtin local __hayfork_id __hayfork_token __hayfork_flags __hayfork_place __hayfork_file __hayfork_end \
        __hayfork_item __hayfork_name __hayfork_before __hayfork_after __hayfork_args= __hayfork_first= \
        __hayfork_set= __hayfork_noted= || __hayfork_fail
    # The user's EXIT trap. One that we have made of it and ours has this between the two.
    builtin local __hayfork_seam=$'\n{ \\__hayfork_leave "$__hayfork_status"'
    __hayfork_end=$(builtin trap -p EXIT)
    builtin eval "\\builtin set -- $__hayfork_end" || __hayfork_fail
    __hayfork_end=${3-}
    if [[ $__hayfork_end == *"$__hayfork_seam"* ]]; then
        __hayfork_end=${__hayfork_end%%"$__hayfork_seam"*}
        __hayfork_end=${__hayfork_end#*$'\n'}
    elif [[ $__hayfork_end == *__hayfork_exit* ]]; then
        __hayfork_end=
    fi
    builtin trap - EXIT
    if [[ ${__hayfork_greeting-} ]]; then
        builtin unset -v __hayfork_greeting
        builtin trap '\__hayfork_signal 129' HUP
        builtin trap '\__hayfork_signal 130' INT
        builtin trap '\__hayfork_signal 138' USR1
        builtin trap '\__hayfork_signal 140' USR2
        builtin trap '\__hayfork_signal 142' ALRM
        builtin trap '\__hayfork_signal 143' TERM
        builtin printf 'ready\n' >"${__hayfork[0]}/events"
    fi

    while
        __hayfork_text=
        until builtin read -r __hayfork_text <"${__hayfork[0]}/control"; do
            (($? > 128)) || builtin exit # neither a timeout nor a signal: the agent is gone
        done
        [[ $__hayfork_text == renew\ * ]]
    do
        # In its special meaning, which `unset` ends, RANDOM never gives a number twice in a row.
        if [[ $RANDOM != "$RANDOM" && ${RANDOM@a} != *r* ]]; then
            RANDOM=$((0x${__hayfork_text:6:8}))
        fi
        builtin printf 'renewed\n' >"${__hayfork[0]}/events"
    done
    __hayfork_text=${__hayfork_text#exec }
    __hayfork_id=${__hayfork_text%% *} __hayfork_text=${__hayfork_text#* }
    __hayfork_token=${__hayfork_text%% *} __hayfork_text=${__hayfork_text#* }
    __hayfork_flags=${__hayfork_text:0:3} # 1 for standard input and 2 for variables; last
    __hayfork_place=${__hayfork[0]}/$__hayfork_id

    __hayfork_file=()
    if [[ $__hayfork_flags == [23]* ]]; then
        builtin mapfile -d '' -t __hayfork_file <"$__hayfork_place/env"
    fi
    for __hayfork_item in "${__hayfork_file[@]}"; do
        __hayfork_name=${__hayfork_item%%=*}
        if [[ ! -v $__hayfork_name ]]; then
            __hayfork_before=-$__hayfork_name
        elif [[ ${!__hayfork_name@a} == *x* ]]; then
            __hayfork_before=x$__hayfork_name=${!__hayfork_name}
        else
            __hayfork_before==$__hayfork_name=${!__hayfork_name}
        fi
        builtin printf -v __hayfork_before ' %q' "$__hayfork_before"
        __hayfork_args+=$__hayfork_before
        builtin export "$__hayfork_item"
    done

    # What has to be set again for user code. What would be traced as if it were the user's goes into the same `eval`.
    for __hayfork_item in errexit nounset noglob allexport keyword onecmd verbose noclobber errtrace functrace; do
        [[ :$__hayfork_options: == *:$__hayfork_item:* ]] && __hayfork_set+=" -o $__hayfork_item"
    done
    __hayfork_set=${__hayfork_set:+"builtin set$__hayfork_set;"}
    [[ :$__hayfork_shopt: == *:expand_aliases:* ]] && __hayfork_set+='builtin shopt -s expand_aliases;'
    [[ ${__hayfork_traps-} ]] && __hayfork_first=${__hayfork_traps//$'\n'trap -- /;builtin trap -- }
    __hayfork_first=${__hayfork_first:+"builtin $__hayfork_first;"}
    [[ :$__hayfork_options: == *:xtrace:* ]] && __hayfork_first+='builtin set -x;'

    builtin mapfile -d '' -t __hayfork_file <"$__hayfork_place/code" || __hayfork_fail
    __hayfork_file=${__hayfork_file[0]-}
    # (Removing a prefix by a pattern would take minutes for a megabyte.)
    if [[ $__hayfork_file == $'\xef\xbb\xbf'* ]]; then
        if [[ ${__hayfork_file:0:1} == $'\xef\xbb\xbf' ]]; then
            __hayfork_file=${__hayfork_file:1}
        else
            __hayfork_file=${__hayfork_file:3}
        fi
    fi
    [[ $__hayfork_file == '#!'* ]] && __hayfork_script
    # Functions do not see the traps on ERR, RETURN and DEBUG, so they are kept and switched off at top level, right
    # after user code. To look for them takes a process, so that is done only if the user's code may have set one.
    __hayfork_after='\builtin trap - ERR RETURN DEBUG; } >/dev/null 2>&1; '
    if [[ $__hayfork_first || $__hayfork_file == *ERR* || $__hayfork_file == *DEBUG* ||
        $__hayfork_file == *RETURN* ]]; then
        __hayfork_after='__hayfork_traps=$(\builtin trap -p ERR RETURN DEBUG); '$__hayfork_after
    fi
    __hayfork_after="; $__hayfork_after"
    builtin printf -v __hayfork_file %q "$__hayfork_first$__hayfork_file"

    __hayfork_text="builtin unset -v __hayfork_{text,noted,status,options,shopt,probe,traps};$__hayfork_set"
    __hayfork_text+="builtin eval $__hayfork_file;"
    __hayfork_text+='{ __hayfork_calm "$?"'"$__hayfork_after"
    if [[ $__hayfork_flags == *1 ]]; then
        __hayfork_text+=' __hayfork_again; builtin exit "$__hayfork_status"'
    else
        __hayfork_args="$__hayfork_id $__hayfork_token$__hayfork_args"
        __hayfork_text+=" __hayfork_done $__hayfork_args"
        if [[ $__hayfork_end ]]; then
            __hayfork_end='{ \__hayfork_keep "$?"; } 2>/dev/null'$'\n'"$__hayfork_end$__hayfork_seam"
        else
            __hayfork_end='{ \__hayfork_leave "$?"'
        fi
        __hayfork_end+="$__hayfork_after"
        __hayfork_end+=$'\n''\__hayfork_exit "$(\builtin local -p 2>/dev/null)" "${*@Q}" '$__hayfork_args
    fi

    __hayfork_item=/dev/null
    [[ $__hayfork_flags == [13]* ]] && __hayfork_item=$__hayfork_place/in
    __hayfork_open "$__hayfork_item" "$__hayfork_place/out" "$__hayfork_place/err"
    builtin unset -v __hayfork_last
    [[ $__hayfork_end ]] && builtin trap -- "$__hayfork_end" EXIT
    [[ $__hayfork_noted ]] && __hayfork_text="builtin exit $__hayfork_noted"
    builtin return 0
}

# Code that begins with `#!` is a script for that interpreter, which may have one argument, as for the kernel.
__hayfork_script() {
    builtin local __hayfork_line __hayfork_word
    builtin mapfile -n 1 -t __hayfork_line <"$__hayfork_place/code"
    __hayfork_line=${__hayfork_line[0]%$'\r'}
    __hayfork_line=${__hayfork_line#*'#!'}
    __hayfork_line=${__hayfork_line#"${__hayfork_line%%[![:blank:]]*}"}
    __hayfork_line=${__hayfork_line%"${__hayfork_line##*[![:blank:]]}"}
    __hayfork_word=${__hayfork_line%%[[:blank:]]*}
    [[ $__hayfork_word ]] || builtin return 0
    __hayfork_line=${__hayfork_line:${#__hayfork_word}}
    __hayfork_line=${__hayfork_line#"${__hayfork_line%%[![:blank:]]*}"}
    builtin printf -v __hayfork_file ' %q' "$__hayfork_word" ${__hayfork_line:+"$__hayfork_line"} \
        "$__hayfork_place/code"
    __hayfork_file="\\builtin command${__hayfork_file}"
}

builtin readonly -f __hayfork_{program,calm,open,no_posix,fail,signal,leave,keep,restore,again,done,exit,dump,next,script}

if [[ ${3-} == resume ]]; then
    # The state that __hayfork_exit has written. What cannot be set again (UID, the driver's own) complains in vain.
    builtin mapfile -d '' -t __hayfork_text
    builtin set --
    builtin eval "${__hayfork_text[0]-}" >/dev/null 2>&1
    __hayfork_open /dev/null "${__hayfork[0]}/idle.out" "${__hayfork[0]}/idle.err"
else
    __hayfork_options=$SHELLOPTS __hayfork_shopt=$BASHOPTS __hayfork_greeting=1
    builtin set --
fi
