# The shell driver: functions for the command that the file `launch` starts bash with (bash 5.2; nothing but bash is needed).
#
# User code runs in this very shell, by `eval` at top level, so that everything it sets stays set: not inside a function
# (`declare` would be local) and not inside a loop (`break` would end it). So the program is a long list of units
#
#     __hayfork_next; builtin eval "$__hayfork_text"
#
# that ends with an `eval` of the same list. `__hayfork_next` waits for an execution and makes the text of it: what the user's
# options and traps need, the `eval` of the user's code, and `__hayfork_done ID TOKEN` after it. The agent's token is part of
# that text, which bash has read when the user's code starts: it is in no variable that user code could set or unset.
# Everything is on the first line of what `bash -c` got, so line numbers in messages are those of the user's code.
#
# If user code ends the shell (`exit 3`, a failure under `set -e`, Ctrl-C), the EXIT trap writes down all variables, functions,
# aliases, options and traps, tells the agent the exit code, and replaces the process by a new bash that reads them and goes
# on: same process number, same descriptors, same folder. If user code has put an EXIT trap of its own in the place of
# ours the process does end, and the agent makes a new one; such a trap of an earlier execution is run before ours.
#
# User code may define functions and aliases with any name. The driver's functions are read-only and were read when there were
# no aliases. They call builtins by `builtin`; should the user have a function of that name that gets in the way, it is removed.
# Options that would change what the driver does are off while it works (`__hayfork_calm`). Not kept from one execution
# to the next: `$?`, traps on DEBUG and RETURN, and the descriptors 0 to 2.

# The context's folder, this file, and the shell itself.
declare -ra __hayfork=("$1" "${BASH_SOURCE[0]}" "$BASH")

# The list of units, in groups: bash needs stack for each command of a list that is not in a group of its own.
__hayfork_program() {
    builtin local __hayfork_unit='__hayfork_next;builtin eval "$__hayfork_text";' __hayfork_group= __hayfork_all= __hayfork_n
    for __hayfork_n in {1..16}; do __hayfork_group+=$__hayfork_unit; done
    for __hayfork_n in {1..16}; do __hayfork_all+="{ $__hayfork_group };"; done
    builtin printf '%s' "$__hayfork_all" 'builtin eval "$(__hayfork_program)"'
}

# First thing after user code, with its output thrown away (a trace or a DEBUG trap would speak): keeps the exit code $1 and
# the options, and makes the shell behave.
__hayfork_calm() {
    __hayfork_status=$1 __hayfork_options=$SHELLOPTS __hayfork_probe=
    builtin printf -v __hayfork_probe ok
    [[ $__hayfork_probe == ok ]] || {
        # In POSIX mode no function can stand in the way of `unset`.
        __hayfork_probe=$BASHOPTS POSIXLY_CORRECT=1
        \unset -f builtin
        __hayfork_no_posix "$__hayfork_probe"
        builtin printf -v __hayfork_probe ok
        [[ $__hayfork_probe == ok ]] || __hayfork_fail
    }
    builtin set +aefktuvxCET
    builtin trap - DEBUG RETURN
}

# Makes descriptors 0, 1, 2 of the files $1, $2, $3. (`builtin exec` would open them for itself only. A function of the user's with
# that name does not count in POSIX mode.)
__hayfork_open() {
    if builtin declare -F exec >/dev/null && [[ :$SHELLOPTS: != *:posix:* ]]; then
        builtin local __hayfork_shopt=$BASHOPTS
        POSIXLY_CORRECT=1
        \exec <"$1" >"$2" 2>"$3"
        __hayfork_no_posix "$__hayfork_shopt"
    else
        \exec <"$1" >"$2" 2>"$3"
    fi
}

# Leaves POSIX mode. $1: BASHOPTS as it was before, since that mode changes some of them.
__hayfork_no_posix() {
    \unset -v POSIXLY_CORRECT
    [[ :$1: == *:inherit_errexit:* ]] || builtin shopt -u inherit_errexit
    [[ :$1: == *:expand_aliases:* ]] || builtin shopt -u expand_aliases
}

# Ends the shell without the help of any builtin: this expansion is an error.
__hayfork_fail() {
    __hayfork_probe=${__hayfork_nothing?the driver cannot go on}
}

# What happens on a signal that the user has no trap for; $1 is 128 + its number. While idle, Ctrl-C does nothing and the
# others end the shell.
__hayfork_signal() {
    if [[ ${FUNCNAME[1]-} == __hayfork_next ]]; then
        (($1 == 130)) && return
        builtin trap - EXIT
    fi
    builtin exit "$1"
}

# Before a user's EXIT trap: $? is the exit code, and no failure ends the trap before ours has run.
__hayfork_keep() {
    builtin set +e
    __hayfork_status=$1
    return "$1"
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

# Tells the agent that execution $1 with token $2 is done; the rest is for __hayfork_restore.
__hayfork_done() {
    __hayfork_restore "${@:3}"
    __hayfork_open /dev/null "${__hayfork[0]}/idle.out" "${__hayfork[0]}/idle.err"
    __hayfork_last=$1
    builtin printf '%s done %d\n' "$2" "$__hayfork_status" >"${__hayfork[0]}/events"
}

# The EXIT trap: says `done` unless that has been said, and goes on in a new bash. $1: declarations of the local variables
# of the function that called `exit`; the rest is for __hayfork_done, or nothing.
__hayfork_exit() {
    builtin local __hayfork_state __hayfork_traps
    __hayfork_traps=$(builtin trap -p)
    builtin trap : INT TERM HUP
    if (($# > 1)) && [[ ${__hayfork_last-} != "$2" ]]; then
        __hayfork_restore "${@:4}"
        __hayfork_state=$(__hayfork_dump "$1" 2>/dev/null)
        __hayfork_done "$2" "$3"
    else
        __hayfork_state=$(__hayfork_dump "$1" 2>/dev/null)
    fi
    # Variables that a starting bash would act on are read again with the others.
    [[ ${BASH_ENV+x} ]] && builtin export -n BASH_ENV
    [[ ${SHELLOPTS@a} == *x* ]] && builtin export -n SHELLOPTS
    [[ ${BASHOPTS@a} == *x* ]] && builtin export -n BASHOPTS
    builtin shopt -u execfail
    builtin exec -- "${__hayfork[2]}" --noprofile --norc -c \
        '. "$2"; builtin eval "$(__hayfork_program)"' bash "${__hayfork[0]}" "${__hayfork[1]}" resume <<<"$__hayfork_state"
}

# Writes commands that bring this shell's state back. Runs in a subshell. $1 as in __hayfork_exit: the variables of that
# name outside the function are meant.
__hayfork_dump() {
    builtin shopt -u localvar_unset
    builtin shopt -p
    builtin local __hayfork_line __hayfork_names
    builtin mapfile -t __hayfork_names <<<"$1"
    for __hayfork_line in "${__hayfork_names[@]}"; do
        __hayfork_line=${__hayfork_line#declare -* }
        builtin unset -v "${__hayfork_line%%=*}"
    done
    builtin printf '%s\n' "$__hayfork_traps"
    builtin mapfile -t __hayfork_names <<<"$(builtin compgen -A function)"
    for __hayfork_line in "${__hayfork_names[@]}"; do
        [[ $__hayfork_line == __hayfork_* ]] || builtin declare -fp -- "$__hayfork_line"
    done
    builtin unset -v __hayfork_line __hayfork_names __hayfork_state __hayfork_text __hayfork_traps BASH_ARGC BASH_ARGV BASH_ARGV0 \
        BASH_COMMAND BASH_LINENO BASH_MONOSECONDS BASH_SOURCE BASH_SUBSHELL BASHPID COMP_WORDBREAKS DIRSTACK EPOCHREALTIME \
        EPOCHSECONDS FUNCNAME GROUPS HISTCMD LINENO PIPESTATUS RANDOM SRANDOM _
    builtin declare -p
}

# Waits for an execution, puts its descriptors in place and makes __hayfork_text of it.
__hayfork_next() {
    builtin local __hayfork_id __hayfork_token __hayfork_flags __hayfork_place __hayfork_file __hayfork_traps \
        __hayfork_first= __hayfork_before= __hayfork_end __hayfork_item __hayfork_name __hayfork_args=
    # The user's traps. An EXIT trap that we have made of the user's own and ours has this between the two.
    builtin local __hayfork_seam=$'\n{ __hayfork_calm "$__hayfork_status"; } >/dev/null 2>&1'
    __hayfork_traps=$(builtin trap -p EXIT)
    builtin eval "builtin set -- $__hayfork_traps"
    __hayfork_end=${3-}
    if [[ $__hayfork_end == *"$__hayfork_seam"* ]]; then
        __hayfork_end=${__hayfork_end%%"$__hayfork_seam"*}
        __hayfork_end=${__hayfork_end#*$'\n'}
    elif [[ $__hayfork_end == *__hayfork_exit* ]]; then
        __hayfork_end=
    fi
    builtin trap -- '__hayfork_exit ""' EXIT
    __hayfork_traps=$(builtin trap -p ERR)
    if [[ $__hayfork_traps ]]; then
        builtin trap - ERR
        __hayfork_first+="builtin $__hayfork_traps;"
    fi

    __hayfork_text=
    while :; do
        if builtin read -r __hayfork_text <"${__hayfork[0]}/control"; then
            break
        elif (($? <= 128)); then # not the end of a time or a signal, but the end of the agent
            builtin trap - EXIT
            builtin exit
        fi
    done
    __hayfork_text=${__hayfork_text#exec }
    __hayfork_id=${__hayfork_text%% *} __hayfork_text=${__hayfork_text#* }
    __hayfork_token=${__hayfork_text%% *} __hayfork_text=${__hayfork_text#* }
    __hayfork_flags=${__hayfork_text%% *}
    __hayfork_place=${__hayfork[0]}/$__hayfork_id

    builtin mapfile -d '' -t __hayfork_file <"$__hayfork_place/env"
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

    # What has to be set again before user code, and what would be traced as if it were user code if it were set earlier.
    builtin local __hayfork_set=
    for __hayfork_item in errexit nounset noglob allexport keyword onecmd verbose noclobber errtrace functrace; do
        [[ :$__hayfork_options: == *:$__hayfork_item:* ]] && __hayfork_set+=" -o $__hayfork_item"
    done
    [[ :$__hayfork_options: == *:xtrace:* ]] && __hayfork_first+='builtin set -x;'

    builtin mapfile -d '' -t __hayfork_file <"$__hayfork_place/code"
    __hayfork_file=${__hayfork_file[0]-}
    __hayfork_file=${__hayfork_file#$'\xef\xbb\xbf'}
    if [[ $__hayfork_file == '#!'* ]]; then
        __hayfork_script
    fi
    builtin printf -v __hayfork_file %q "$__hayfork_first$__hayfork_file"

    __hayfork_args="$__hayfork_id $__hayfork_token$__hayfork_args"
    if [[ $__hayfork_end ]]; then
        __hayfork_end="{ __hayfork_keep \"\$?\"; } 2>/dev/null"$'\n'"$__hayfork_end$__hayfork_seam"
    else
        __hayfork_end='{ __hayfork_calm "$?"; } >/dev/null 2>&1'
    fi
    __hayfork_end+="; __hayfork_exit \"\$(builtin local -p 2>/dev/null)\" $__hayfork_args"
    builtin printf -v __hayfork_end %q "$__hayfork_end"

    __hayfork_text="builtin unset -v __hayfork_text __hayfork_status __hayfork_options __hayfork_probe __hayfork_last;"
    __hayfork_text+="builtin trap -- $__hayfork_end EXIT;"
    [[ $__hayfork_set ]] && __hayfork_text+="builtin set$__hayfork_set;"
    __hayfork_text+="builtin eval $__hayfork_file;"
    __hayfork_text+="{ __hayfork_calm \"\$?\"; } >/dev/null 2>&1; __hayfork_done $__hayfork_args"

    __hayfork_item=/dev/null
    [[ $__hayfork_flags == 1 ]] && __hayfork_item=$__hayfork_place/in
    __hayfork_open "$__hayfork_item" "$__hayfork_place/out" "$__hayfork_place/err"
}

# Code that begins with `#!` is a script for that interpreter, which may have one argument, as for the kernel.
__hayfork_script() {
    builtin local __hayfork_line=${__hayfork_file%%$'\n'*} __hayfork_word __hayfork_rest
    __hayfork_line=${__hayfork_line%$'\r'}
    __hayfork_line=${__hayfork_line:2}
    __hayfork_line=${__hayfork_line#"${__hayfork_line%%[! $'\t']*}"}
    __hayfork_line=${__hayfork_line%"${__hayfork_line##*[! $'\t']}"}
    __hayfork_word=${__hayfork_line%%[ $'\t']*}
    __hayfork_rest=${__hayfork_line:${#__hayfork_word}}
    __hayfork_rest=${__hayfork_rest#"${__hayfork_rest%%[! $'\t']*}"}
    [[ $__hayfork_word ]] || return
    if [[ $__hayfork_rest ]]; then
        builtin printf -v __hayfork_file '%q %q %q' "$__hayfork_word" "$__hayfork_rest" "$__hayfork_place/code"
    else
        builtin printf -v __hayfork_file '%q %q' "$__hayfork_word" "$__hayfork_place/code"
    fi
}

builtin readonly -f __hayfork_{program,calm,open,no_posix,fail,signal,keep,restore,done,exit,dump,next,script}

if [[ ${3-} == resume ]]; then
    # The state that __hayfork_exit has written. What cannot be set again (UID, the driver's own) complains in vain.
    builtin mapfile -d '' -t __hayfork_text
    builtin eval "${__hayfork_text[0]-}" >/dev/null 2>&1
    __hayfork_open /dev/null "${__hayfork[0]}/idle.out" "${__hayfork[0]}/idle.err"
else
    __hayfork_options=$SHELLOPTS
    builtin trap '__hayfork_signal 129' HUP
    builtin trap '__hayfork_signal 130' INT
    builtin trap '__hayfork_signal 138' USR1
    builtin trap '__hayfork_signal 140' USR2
    builtin trap '__hayfork_signal 142' ALRM
    builtin trap '__hayfork_signal 143' TERM
    builtin printf 'ready\n' >"${__hayfork[0]}/events"
fi
builtin set --
