# Completion of taskwire in bash. The program itself says what a word can become: commands and options, servers, their tools
# and arguments, tasks and their questions, files.
_taskwire() {
    local word
    COMPREPLY=()
    while IFS= read -r word; do
        COMPREPLY+=("$word")
    done < <(command taskwire complete bash -- "${COMP_LINE:0:COMP_POINT}" "$2" "${COMP_TYPE:-9}" 2>/dev/null </dev/null)
}
# Where a blank belongs behind a word, it has one. Before bash 4.4 there is no other order than the alphabet's.
complete -o nospace -o nosort -F _taskwire taskwire 2>/dev/null || complete -o nospace -F _taskwire taskwire
