#compdef taskwire
# Completion of taskwire in zsh. The program itself says what a word can become: commands and options, servers, their tools
# and arguments, tasks and their questions, files.
_taskwire() {
    local -a whole whole_shown part part_shown
    local line text help shown
    while IFS= read -r line; do
        text=${${line#*$'\t'}%%$'\t'*}
        help=${line##*$'\t'}
        shown=$text
        [[ -n $help ]] && shown="$text  -- $help"
        if [[ $line == whole$'\t'* ]]; then
            whole+=("$text")
            whole_shown+=("$shown")
        else
            part+=("$text")
            part_shown+=("$shown")
        fi
    done < <(command taskwire complete zsh -- "${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null </dev/null)
    (( $#whole )) && compadd -V taskwire -l -d whole_shown -a whole
    # More follows right behind these.
    (( $#part )) && compadd -V taskwire -l -S '' -d part_shown -a part
    (( $#whole + $#part ))
}
if [[ $funcstack[1] == _taskwire ]]; then
    _taskwire "$@"
else
    compdef _taskwire taskwire
fi
