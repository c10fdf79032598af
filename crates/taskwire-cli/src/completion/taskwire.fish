# Completion of taskwire in fish. The program itself says what a word can become: commands and options, servers, their tools
# and arguments, tasks and their questions, files.
function __taskwire_complete
    set -l words (commandline -opc)
    command taskwire complete fish -- $words (commandline -ct) 2>/dev/null </dev/null
end
complete --command taskwire --no-files --keep-order --arguments '(__taskwire_complete)'
