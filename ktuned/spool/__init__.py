"""The spool: a directory in which applications leave calls to be tuned, and the counts of their launches."""

from ktuned.spool.directory import (
    COUNTS_SUFFIX,
    MAX_RECORDS,
    RECORD_SUFFIX,
    STAGED_PREFIX,
    TEXTS_SUFFIX,
    RefusedFile,
    forget_texts,
    keep_texts,
    leave_counts,
    leave_record,
    read_file,
    read_texts,
    spool_directory,
)
from ktuned.spool.records import (
    CALL_KEY,
    CALLS,
    TYPES_KEY,
    CallRecord,
    InvalidRecord,
    KeyLaunches,
    LaunchCounts,
    digest_content,
)
