# Ends as its first argument says; a number is the time that it prints.
case "$1" in
    fails) echo "no luck today" >&2; exit 3 ;;
    hangs) sleep 1000 & wait ;;
    dies) kill -SEGV $$ ;;
    silent) ;;
    *) echo "warm-up took 99 ms"; echo "took $1 ms $EXTRA" ;;
esac
