/* The observer of a worker and of all that it starts: a library that the dynamic loader puts before libc.
 *
 * It notes which names a process opens, tests, lists, executes and maps, whether they exist or not, and which variables
 * it reads. The notes go into a log that the worker and its descendants share (log.py has the same layout). The observer
 * decides nothing, with one exception: what another user could have written is neither executed nor mapped. In a bench
 * it also reports at which tensor the process faulted.
 *
 * The loader loads this file twice. As LD_PRELOAD, its functions replace libc's. As LD_AUDIT, in a name space of its
 * own, it is told what the loader itself searches and maps; it binds no symbols there (la_symbind is absent), so that
 * calls between libraries stay as direct as before.
 *
 * This code may run in a signal handler, after vfork, or before any constructor. So it allocates no memory, takes no
 * lock and preserves errno. A note that is made while another one is being made is dropped: the observer's own calls
 * must not be noted.
 */
#define _GNU_SOURCE
#undef _FORTIFY_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { ENTRIES = 1 << 15, SLOTS = 1 << 16, ARENA = 4 << 20, LONGEST = 4096, MARKS = 192 };

/* What was done with a name (log.py: Kind). */
enum {
    OPENED = 'o', WRITTEN = 'w', TESTED = 't', LISTED = 'l', FOLLOWED = 'k', EXECUTED = 'x', SEARCHED = 's', MAPPED = 'm',
    VARIABLE = 'v', ENVIRONMENT = 'e', CONNECTED = 'c', HIDDEN = 'h', REFUSED = 'u', RENAMED = 'r'
};

struct entry { uint32_t hash, epoch, pid; uint8_t kind, found; uint16_t length; char name[]; };

struct log {
    uint32_t magic, epoch, silent;
    _Atomic uint32_t count, used, full;
    uint32_t owner, reserved[9];
    char marks[MARKS];
    _Atomic uint32_t index[ENTRIES];
    _Atomic uint32_t slots[SLOTS];
    char arena[ARENA];
};

enum { MAGIC = 0x6b6f6231 };

#define LOG_VARIABLE "KTUNED_OBSERVER"
#define TRUST_VARIABLE "KTUNED_TRUSTED"
#define OFF_VARIABLE "KTUNED_UNOBSERVED"

extern char **environ;
static struct log *shared;
static char log_setting[LONGEST], preload_setting[LONGEST], audit_setting[LONGEST], trust_setting[LONGEST];
static const char *trusted = "";
static int is_tool;
static __thread int busy __attribute__((tls_model("initial-exec")));

/* libc's own function, looked up once. */
#define REAL(result, name, ...)                                                    \
    static result (*real_##name)(__VA_ARGS__);                                     \
    static inline __typeof__(real_##name) libc_##name(void) {                      \
        if (!real_##name) *(void **)&real_##name = dlsym(RTLD_NEXT, #name);        \
        return real_##name;                                                        \
    }
static void note_path(char kind, int found, int directory, const char *name);
static void note_text(char kind, int found, const char *text);
#define VISIBLE __attribute__((visibility("default")))

REAL(long, syscall, long, ...)
/* A system call of this library's own, which is not noted. */
#define quietly libc_syscall()

static const char *find_variable(char **environment, const char *name) {
    size_t length = strlen(name);
    for (char **one = environment; one && *one; ++one)
        if (!strncmp(*one, name, length) && (*one)[length] == '=') return *one + length + 1;
    return NULL;
}

static void keep_setting(char *into, const char *name, const char *value) {
    if (!value || strlen(name) + strlen(value) + 2 > LONGEST) return;
    memcpy(into, name, strlen(name));
    into[strlen(name)] = '=';
    memcpy(into + strlen(name) + 1, value, strlen(value) + 1);
}

/* Return the mark (NAME=value) after one, or the first; NULL if there is no other. Every child has the marks in its
 * environment, by which it is found and killed. Code does not see them: they are taken out of environ. */
static char *next_mark(char *mark) {
    mark = mark ? mark + strlen(mark) + 1 : shared ? shared->marks : NULL;
    return mark && mark < shared->marks + MARKS - 1 && *mark ? mark : NULL;
}

static int has_same_name(const char *entry, const char *mark) { return !strncmp(entry, mark, strcspn(mark, "=") + 1); }

static void hide_marks(char **environment) {
    for (char *mark = NULL; environment && (mark = next_mark(mark));)
        for (char **one = environment; *one;) {
            if (!has_same_name(*one, mark)) { ++one; continue; }
            for (char **at = one; (at[0] = at[1]); ++at) {}
        }
}

/* Return whether an installed program is a compiler's or a linker's. These read variables by getenv alone. */
static int is_of_toolchain(const char *path) {
    static const char *const names[] = {"gcc", "g++", "cpp", "cc1", "cc1plus", "collect2", "as", "ld", "ld.bfd", "ld.gold", "lto1", "lto-wrapper",
                                        "clang", "clang++", "lld", "nvcc", "cicc", "ptxas", "cudafe++", "fatbinary", "nvlink", "bin2c", 0};
    if (!(!strncmp(path, "/usr/", 5) && strncmp(path, "/usr/local/", 11)) && !strstr(path, "-packages/") && !strstr(path, "/cuda")) return 0;
    const char *name = strrchr(path, '/') + 1;
    size_t length = strlen(name), version = length;
    while (version && strchr("0123456789.", name[version - 1])) --version;
    if (version && version < length && name[version - 1] == '-') length = version - 1;
    for (const char *const *one = names; *one; ++one) {
        size_t own = strlen(*one);
        if (length >= own && !strncmp(name + length - own, *one, own) && (length == own || name[length - own - 1] == '-')) return 1;
    }
    return 0;
}

/* Map the log that the environment names, and keep the settings that children need; without a log nothing is noted. */
__attribute__((constructor(101))) static void open_log(int argc, char **argv, char **environment) {
    (void)argv;
    if (shared) return;
    const char *place = find_variable(environment ? environment : environ, LOG_VARIABLE);
    if (!place) return;
    ++busy;
    keep_setting(log_setting, LOG_VARIABLE, place);
    keep_setting(preload_setting, "LD_PRELOAD", find_variable(environment ? environment : environ, "LD_PRELOAD"));
    keep_setting(audit_setting, "LD_AUDIT", find_variable(environment ? environment : environ, "LD_AUDIT"));
    keep_setting(trust_setting, TRUST_VARIABLE, find_variable(environment ? environment : environ, TRUST_VARIABLE));
    if (*trust_setting) trusted = trust_setting + sizeof(TRUST_VARIABLE);
    long file = quietly(SYS_openat, AT_FDCWD, place, O_RDWR | O_CLOEXEC, 0);
    if (file >= 0) {
        struct stat found;
        if (!fstat((int)file, &found) && found.st_size >= (off_t)sizeof(struct log)) {
            void *mapped = mmap(NULL, sizeof(struct log), PROT_READ | PROT_WRITE, MAP_SHARED, (int)file, 0);
            if (mapped != MAP_FAILED && ((struct log *)mapped)->magic == MAGIC) shared = mapped;
        }
        quietly(SYS_close, file);
    }
    hide_marks(environment);
    if (environ != environment) hide_marks(environ);
    --busy;
    /* A process names its own program, because libc starts shells without passing here (system, popen). A program may
     * read all its variables without getenv; the toolchain's programs are known not to. */
    char program[LONGEST];
    long length = argc && shared ? quietly(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", program, sizeof program - 1) : 0;
    if (length <= 0 || shared->owner == (uint32_t)getpid()) return;
    program[length] = 0;
    note_path(EXECUTED, 1, AT_FDCWD, program);
    is_tool = is_of_toolchain(program);
    if (!is_tool) note_text(ENVIRONMENT, 1, "");
}

/* Enter a name into the log, once for each epoch. A process that is killed in here leaves a hole in the index, but no
 * lock: an entry is complete before a slot points to it, and the slot is taken before the index counts it. */
static void enter_name(uint8_t kind, uint8_t found, const char *name, size_t length) {
    struct log *log = shared;
    if (length > LONGEST) { atomic_store(&log->full, 1); return; }
    uint32_t hash = 2166136261u ^ log->epoch;
    hash = (hash ^ (uint32_t)(kind << 1 | found)) * 16777619u;
    for (size_t at = 0; at < length; ++at) hash = (hash ^ (uint8_t)name[at]) * 16777619u;
    uint32_t offset = 0, size = (uint32_t)((sizeof(struct entry) + length + 7) & ~(size_t)7);
    for (uint32_t probe = 0; probe < 64; ++probe) {
        _Atomic uint32_t *slot = &log->slots[(hash + probe) % SLOTS];
        uint32_t held = atomic_load(slot);
        if (!held) {
            if (!offset) {
                offset = atomic_fetch_add(&log->used, size) + 8;
                if (offset > ARENA - size) { atomic_store(&log->full, 1); return; }
                struct entry *made = (struct entry *)(log->arena + offset);
                *made = (struct entry){hash, log->epoch, (uint32_t)getpid(), kind, found, (uint16_t)length};
                memcpy(made->name, name, length);
            }
            if (atomic_compare_exchange_strong(slot, &held, offset)) {
                uint32_t position = atomic_fetch_add(&log->count, 1);
                if (position < ENTRIES) atomic_store(&log->index[position], offset);
                else atomic_store(&log->full, 1);
                return;
            }
        }
        if (held > ARENA - sizeof(struct entry)) return;
        struct entry *other = (struct entry *)(log->arena + held);
        if (other->hash == hash && other->epoch == log->epoch && other->kind == kind && other->found == found &&
            other->length == length && !memcmp(other->name, name, length)) return;
    }
    atomic_store(&log->full, 1);
}

static int is_worker(void) { return shared->owner == (uint32_t)getpid(); }

/* Return whether a path is the system's own: made by Linux (/proc, /sys, devices), or, in any process but the worker,
 * installed by the package manager. The device and the toolchain stand for these. The worker runs the project's code,
 * whose reads of installed files count. Programs and libraries are noted all the same. */
static int is_of_system(const char *name) {
    static const char *const places[] = {"/proc/", "/sys/", "/dev/", "/usr/", "/lib/", "/lib64/", "/lib32/", "/bin/", "/sbin/", 0};
    for (const char *const *place = places; *place; ++place)
        if (!strncmp(name, *place, strlen(*place)))
            return strncmp(name, "/usr/local/", 11) && strncmp(name, "/dev/shm/", 9) && !strstr(name, "/../") &&
                   !strstr(name, "-packages/") && (place < places + 3 || !is_worker());
    return 0;
}

/* Make a name absolute, without a look at the disk; return its length, or 0 if it is too long or its directory unknown. */
static size_t make_absolute(char *into, int directory, const char *name) {
    size_t length = strlen(name), before = 0;
    if (name[0] != '/') {
        long got;
        if (directory == AT_FDCWD) {
            got = quietly(SYS_getcwd, into, LONGEST);
            got = got > 0 ? got - 1 : -1;
        } else {
            char link[32];
            snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
            got = quietly(SYS_readlinkat, AT_FDCWD, link, into, LONGEST);
        }
        if (got <= 0 || (size_t)got + length + 2 > LONGEST) return 0;
        before = (size_t)got;
        if (length) into[before++] = '/';
    }
    if (before + length + 1 > LONGEST) return 0;
    memcpy(into + before, name, length + 1);
    return before + length;
}

static void note_path(char kind, int found, int directory, const char *name) {
    if (!shared || shared->silent || busy || !name) return;
    int saved = errno;
    ++busy;
    char path[LONGEST + 1];
    size_t length = make_absolute(path, directory, name);
    if (length && (kind == EXECUTED || kind == MAPPED || !is_of_system(path))) enter_name((uint8_t)kind, (uint8_t)found, path, length);
    --busy;
    errno = saved;
}

static void note_text(char kind, int found, const char *text) {
    if (!shared || shared->silent || busy || !text) return;
    int saved = errno;
    ++busy;
    enter_name((uint8_t)kind, (uint8_t)found, text, strnlen(text, LONGEST));
    --busy;
    errno = saved;
}

static int was_there(int succeeded) { return succeeded || (errno != ENOENT && errno != ENOTDIR && errno != ELOOP); }

/* Return whether an open would create a file; must be called before it. */
static int would_create(int directory, const char *name, int flags) {
    if (!(flags & O_CREAT) || !shared || shared->silent || busy || !name) return 0;
    int saved = errno, is_absent = quietly(SYS_faccessat, directory, name, F_OK, 0) != 0;
    errno = saved;
    return is_absent;
}

/* A file is written if no earlier byte of it can be read: it is emptied, or new and not open for reading. A file that is
 * only appended to is not noted, because another open must follow to read it. */
static void note_open(int directory, const char *name, int flags, int makes, int result) {
    int is_blind = (flags & O_ACCMODE) == O_WRONLY;
    int writes = flags & O_TRUNC || (makes && (is_blind || flags & O_EXCL));
    if (result >= 0 && is_blind && !writes) return;
    int kind = flags & (O_DIRECTORY | O_PATH) ? TESTED : writes && result >= 0 ? WRITTEN : OPENED;
    note_path((char)kind, was_there(result >= 0), directory, name);
}

/* Return whether only this user and root can write a file and each step of the path to it (as ipc/trust.py does). The
 * path is checked as it was given, and then once more with its links resolved. */
static int is_trusted(const char *name) {
    char path[LONGEST + 1], step[LONGEST + 1], real[LONGEST + 1];
    if (!shared || !make_absolute(path, AT_FDCWD, name)) return 1;
    for (int way = 0; way < 2; ++way) {
        if (way) {
            if (!__builtin_strchr(path, '/')) return 1;
            long file = quietly(SYS_openat, AT_FDCWD, path, O_PATH | O_CLOEXEC, 0);
            if (file < 0) return 1;
            char link[32];
            snprintf(link, sizeof link, "/proc/self/fd/%d", (int)file);
            long got = quietly(SYS_readlinkat, AT_FDCWD, link, real, LONGEST);
            quietly(SYS_close, file);
            if (got <= 0) return 1;
            real[got] = 0;
            memcpy(path, real, (size_t)got + 1);
        }
        for (const char *place = trusted; *place;) {
            size_t length = strcspn(place, ":");
            if (length && !strncmp(path, place, length) && (path[length] == '/' || !path[length])) return 1;
            place += length + (place[length] == ':');
        }
        for (size_t at = 1; at && path[at - 1]; ++at) {
            if (path[at] && path[at] != '/') continue;
            memcpy(step, path, at);
            step[at] = 0;
            struct stat found;
            if (fstatat(AT_FDCWD, step, &found, AT_SYMLINK_NOFOLLOW)) return 1;
            if (found.st_uid != geteuid() && found.st_uid != 0) return 0;
            int is_last = !path[at], is_private = found.st_gid == 0 || (found.st_gid == getegid() && getegid() == geteuid());
            if (!S_ISLNK(found.st_mode) && (is_last || !(found.st_mode & S_ISVTX)) &&
                (found.st_mode & S_IWOTH || (found.st_mode & S_IWGRP && !is_private))) return 0;
        }
    }
    return 1;
}

#define OPENS(name)                                                                \
    REAL(int, name, const char *, int, ...)                                        \
    VISIBLE int name(const char *path, int flags, ...) {                           \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        int makes = would_create(AT_FDCWD, path, flags);                           \
        int result = libc_##name()(path, flags, mode);                             \
        note_open(AT_FDCWD, path, flags, makes, result);                           \
        return result;                                                             \
    }
OPENS(open) OPENS(open64)

#define OPENS_AT(name)                                                             \
    REAL(int, name, int, const char *, int, ...)                                   \
    VISIBLE int name(int directory, const char *path, int flags, ...) {            \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        int makes = would_create(directory, path, flags);                          \
        int result = libc_##name()(directory, path, flags, mode);                  \
        note_open(directory, path, flags, makes, result);                          \
        return result;                                                             \
    }
OPENS_AT(openat) OPENS_AT(openat64)

#define OPENS_CHECKED(name)                                                        \
    REAL(int, name, const char *, int)                                             \
    VISIBLE int name(const char *path, int flags) {                                \
        int result = libc_##name()(path, flags);                                   \
        note_open(AT_FDCWD, path, flags, 0, result);                               \
        return result;                                                             \
    }
OPENS_CHECKED(__open_2) OPENS_CHECKED(__open64_2)

#define OPENS_AT_CHECKED(name)                                                     \
    REAL(int, name, int, const char *, int)                                        \
    VISIBLE int name(int directory, const char *path, int flags) {                 \
        int result = libc_##name()(directory, path, flags);                        \
        note_open(directory, path, flags, 0, result);                              \
        return result;                                                             \
    }
OPENS_AT_CHECKED(__openat_2) OPENS_AT_CHECKED(__openat64_2)

#define CREATES(name)                                                              \
    REAL(int, name, const char *, mode_t)                                          \
    VISIBLE int name(const char *path, mode_t mode) {                              \
        int result = libc_##name()(path, mode);                                    \
        note_open(AT_FDCWD, path, O_WRONLY | O_TRUNC, 0, result);                  \
        return result;                                                             \
    }
CREATES(creat) CREATES(creat64)

/* The flags that a stream's mode stands for; NULL only changes the mode of an open stream. */
static int read_mode(const char *mode) {
    int access = strchr(mode, '+') ? O_RDWR : *mode == 'r' ? O_RDONLY : O_WRONLY;
    return access | (*mode == 'w' ? O_CREAT | O_TRUNC : *mode == 'a' ? O_CREAT | O_APPEND : 0) | (strchr(mode, 'x') ? O_EXCL : 0);
}

#define OPENS_STREAM(name)                                                         \
    REAL(FILE *, name, const char *, const char *)                                 \
    VISIBLE FILE *name(const char *path, const char *mode) {                       \
        int flags = read_mode(mode), makes = would_create(AT_FDCWD, path, flags);      \
        FILE *result = libc_##name()(path, mode);                                  \
        note_open(AT_FDCWD, path, flags, makes, result ? 0 : -1); \
        return result;                                                             \
    }
OPENS_STREAM(fopen) OPENS_STREAM(fopen64)

#define REOPENS_STREAM(name)                                                       \
    REAL(FILE *, name, const char *, const char *, FILE *)                         \
    VISIBLE FILE *name(const char *path, const char *mode, FILE *stream) {         \
        int flags = read_mode(mode), makes = would_create(AT_FDCWD, path, flags);      \
        FILE *result = libc_##name()(path, mode, stream);                          \
        note_open(AT_FDCWD, path, flags, makes, result ? 0 : -1); \
        return result;                                                             \
    }
REOPENS_STREAM(freopen) REOPENS_STREAM(freopen64)

/* Directories. */
REAL(DIR *, opendir, const char *)
VISIBLE DIR *opendir(const char *path) {
    DIR *result = libc_opendir()(path);
    note_path(LISTED, was_there(result != NULL), AT_FDCWD, path);
    return result;
}
REAL(DIR *, fdopendir, int)
VISIBLE DIR *fdopendir(int file) {
    DIR *result = libc_fdopendir()(file);
    note_path(LISTED, 1, file, "");
    return result;
}
/* These read directories and files by calls inside libc, which do not pass here. */
#define WALKS(result, name, parameters, arguments, ...)                            \
    REAL(result, name, __VA_ARGS__)                                                \
    VISIBLE result name parameters { note_text(HIDDEN, 1, #name "() walks over directories"); return libc_##name() arguments; }
WALKS(int, nftw, (const char *a, void *b, int c, int d), (a, b, c, d), const char *, void *, int, int)
WALKS(int, nftw64, (const char *a, void *b, int c, int d), (a, b, c, d), const char *, void *, int, int)
WALKS(int, ftw, (const char *a, void *b, int c), (a, b, c), const char *, void *, int)
WALKS(int, glob, (const char *a, int b, void *c, void *d), (a, b, c, d), const char *, int, void *, void *)
WALKS(int, glob64, (const char *a, int b, void *c, void *d), (a, b, c, d), const char *, int, void *, void *)
WALKS(int, wordexp, (const char *a, void *b, int c), (a, b, c), const char *, void *, int)
WALKS(void *, fts_open, (char *const *a, int b, void *c), (a, b, c), char *const *, int, void *)
WALKS(int, open_by_handle_at, (int a, struct file_handle *b, int c), (a, b, c), int, struct file_handle *, int)
#define SCANS(name, entry)                                                         \
    REAL(int, name, const char *, struct entry ***, int (*)(const struct entry *), int (*)(const struct entry **, const struct entry **)) \
    VISIBLE int name(const char *path, struct entry ***names, int (*filter)(const struct entry *), \
                     int (*compare)(const struct entry **, const struct entry **)) { \
        int result = libc_##name()(path, names, filter, compare);                  \
        note_path(LISTED, was_there(result >= 0), AT_FDCWD, path);                 \
        return result;                                                             \
    }
SCANS(scandir, dirent) SCANS(scandir64, dirent64)

REAL(ssize_t, getdents64, int, void *, size_t)
VISIBLE ssize_t getdents64(int file, void *into, size_t size) {
    ssize_t result = libc_getdents64()(file, into, size);
    note_path(LISTED, 1, file, "");
    return result;
}

/* Tests. */
#define TESTS(result, name, parameters, arguments, directory, succeeded, ...)      \
    REAL(result, name, __VA_ARGS__)                                                \
    VISIBLE result name parameters {                                               \
        result got = libc_##name() arguments;                                      \
        if (path && *path) note_path(TESTED, was_there(succeeded), directory, path); \
        return got;                                                                \
    }
TESTS(int, stat, (const char *path, struct stat *b), (path, b), AT_FDCWD, !got, const char *, struct stat *)
TESTS(int, lstat, (const char *path, struct stat *b), (path, b), AT_FDCWD, !got, const char *, struct stat *)
TESTS(int, stat64, (const char *path, struct stat64 *b), (path, b), AT_FDCWD, !got, const char *, struct stat64 *)
TESTS(int, lstat64, (const char *path, struct stat64 *b), (path, b), AT_FDCWD, !got, const char *, struct stat64 *)
TESTS(int, fstatat, (int a, const char *path, struct stat *b, int c), (a, path, b, c), a, !got, int, const char *, struct stat *, int)
TESTS(int, fstatat64, (int a, const char *path, struct stat64 *b, int c), (a, path, b, c), a, !got, int, const char *, struct stat64 *, int)
TESTS(int, __xstat, (int a, const char *path, void *b), (a, path, b), AT_FDCWD, !got, int, const char *, void *)
TESTS(int, __lxstat, (int a, const char *path, void *b), (a, path, b), AT_FDCWD, !got, int, const char *, void *)
TESTS(int, __xstat64, (int a, const char *path, void *b), (a, path, b), AT_FDCWD, !got, int, const char *, void *)
TESTS(int, __lxstat64, (int a, const char *path, void *b), (a, path, b), AT_FDCWD, !got, int, const char *, void *)
TESTS(int, __fxstatat, (int v, int a, const char *path, void *b, int c), (v, a, path, b, c), a, !got, int, int, const char *, void *, int)
TESTS(int, __fxstatat64, (int v, int a, const char *path, void *b, int c), (v, a, path, b, c), a, !got, int, int, const char *, void *, int)
TESTS(int, statx, (int a, const char *path, int b, unsigned c, struct statx *d), (a, path, b, c, d), a, !got, int, const char *, int, unsigned, struct statx *)
TESTS(int, access, (const char *path, int b), (path, b), AT_FDCWD, !got, const char *, int)
TESTS(int, faccessat, (int a, const char *path, int b, int c), (a, path, b, c), a, !got, int, const char *, int, int)
TESTS(int, euidaccess, (const char *path, int b), (path, b), AT_FDCWD, !got, const char *, int)
TESTS(int, eaccess, (const char *path, int b), (path, b), AT_FDCWD, !got, const char *, int)
TESTS(char *, realpath, (const char *path, char *b), (path, b), AT_FDCWD, got != NULL, const char *, char *)
TESTS(char *, __realpath_chk, (const char *path, char *b, size_t c), (path, b, c), AT_FDCWD, got != NULL, const char *, char *, size_t)
TESTS(char *, canonicalize_file_name, (const char *path), (path), AT_FDCWD, got != NULL, const char *)

TESTS(ssize_t, getxattr, (const char *path, const char *b, void *c, size_t d), (path, b, c, d), AT_FDCWD, got >= 0 || errno == ENODATA, const char *, const char *, void *, size_t)
TESTS(ssize_t, lgetxattr, (const char *path, const char *b, void *c, size_t d), (path, b, c, d), AT_FDCWD, got >= 0 || errno == ENODATA, const char *, const char *, void *, size_t)
TESTS(ssize_t, listxattr, (const char *path, char *b, size_t c), (path, b, c), AT_FDCWD, got >= 0, const char *, char *, size_t)
TESTS(ssize_t, llistxattr, (const char *path, char *b, size_t c), (path, b, c), AT_FDCWD, got >= 0, const char *, char *, size_t)
#define TESTS_OPEN(name, parameters, arguments, ...)                               \
    REAL(ssize_t, name, int, __VA_ARGS__)                                          \
    VISIBLE ssize_t name parameters {                                              \
        note_path(TESTED, 1, file, "");                                            \
        return libc_##name() arguments;                                            \
    }
TESTS_OPEN(fgetxattr, (int file, const char *a, void *b, size_t c), (file, a, b, c), const char *, void *, size_t)
TESTS_OPEN(flistxattr, (int file, char *a, size_t b), (file, a, b), char *, size_t)

/* The text of a link, which counts whether its target exists or not. */
#define FOLLOWS(name, parameters, arguments, directory, ...)                       \
    REAL(ssize_t, name, __VA_ARGS__)                                               \
    VISIBLE ssize_t name parameters {                                              \
        ssize_t got = libc_##name() arguments;                                     \
        note_path(got >= 0 ? FOLLOWED : TESTED, was_there(got >= 0), directory, path); \
        return got;                                                                \
    }
FOLLOWS(readlink, (const char *path, char *b, size_t c), (path, b, c), AT_FDCWD, const char *, char *, size_t)
FOLLOWS(readlinkat, (int a, const char *path, char *b, size_t c), (a, path, b, c), a, int, const char *, char *, size_t)

/* What a run makes is no input of that run, but what it makes it of may be: a link's target, and a file under its earlier
 * name. A failed attempt shows what is there. */
#define MAKES(name, parameters, arguments, directory, made, of, ...)               \
    REAL(int, name, __VA_ARGS__)                                                   \
    VISIBLE int name parameters {                                                  \
        int got = libc_##name() arguments;                                         \
        if (got) note_path(TESTED, was_there(0), directory, made);                 \
        else { of; note_path(WRITTEN, 1, directory, made); }                       \
        return got;                                                                \
    }
static void note_link(const char *target, int directory, const char *made) {
    char path[LONGEST];
    const char *last = *target == '/' ? NULL : strrchr(made, '/');
    int length = snprintf(path, sizeof path, "%.*s%s", last ? (int)(last - made + 1) : 0, made, target);
    if (length < (int)sizeof path) note_path(OPENED, 1, directory, path);
}
MAKES(rename, (const char *a, const char *b), (a, b), AT_FDCWD, b, note_path(RENAMED, 1, AT_FDCWD, a), const char *, const char *)
MAKES(renameat, (int a, const char *b, int c, const char *d), (a, b, c, d), c, d, note_path(RENAMED, 1, a, b), int, const char *, int, const char *)
MAKES(renameat2, (int a, const char *b, int c, const char *d, unsigned e), (a, b, c, d, e), c, d, note_path(RENAMED, 1, a, b), int, const char *, int, const char *, unsigned)
MAKES(link, (const char *a, const char *b), (a, b), AT_FDCWD, b, note_path(OPENED, 1, AT_FDCWD, a), const char *, const char *)
MAKES(linkat, (int a, const char *b, int c, const char *d, int e), (a, b, c, d, e), c, d, note_path(OPENED, 1, a, b), int, const char *, int, const char *, int)
MAKES(symlink, (const char *a, const char *b), (a, b), AT_FDCWD, b, note_link(a, AT_FDCWD, b), const char *, const char *)
MAKES(symlinkat, (const char *a, int b, const char *c), (a, b, c), b, c, note_link(a, b, c), const char *, int, const char *)
MAKES(mkdir, (const char *a, mode_t b), (a, b), AT_FDCWD, a, , const char *, mode_t)
MAKES(mkdirat, (int a, const char *b, mode_t c), (a, b, c), a, b, , int, const char *, mode_t)
MAKES(mkfifo, (const char *a, mode_t b), (a, b), AT_FDCWD, a, , const char *, mode_t)
MAKES(mknod, (const char *a, mode_t b, dev_t c), (a, b, c), AT_FDCWD, a, , const char *, mode_t, dev_t)
/* A name that cannot be removed shows whether it is there. */
#define REMOVES(name, parameters, arguments, directory, ...)                       \
    REAL(int, name, __VA_ARGS__)                                                   \
    VISIBLE int name parameters {                                                  \
        int got = libc_##name() arguments;                                         \
        if (got) note_path(TESTED, was_there(0), directory, path);                 \
        return got;                                                                \
    }
REMOVES(unlink, (const char *path), (path), AT_FDCWD, const char *)
REMOVES(unlinkat, (int a, const char *path, int b), (a, path, b), a, int, const char *, int)
REMOVES(rmdir, (const char *path), (path), AT_FDCWD, const char *)
REMOVES(remove, (const char *path), (path), AT_FDCWD, const char *)
#define MAKES_TEMPORARY(result, failed, name, parameters, arguments, ...)          \
    REAL(result, name, __VA_ARGS__)                                                \
    VISIBLE result name parameters {                                               \
        result got = libc_##name() arguments;                                      \
        if (got != failed) note_path(WRITTEN, 1, AT_FDCWD, a);                     \
        return got;                                                                \
    }
MAKES_TEMPORARY(int, -1, mkstemp, (char *a), (a), char *)
MAKES_TEMPORARY(int, -1, mkstemp64, (char *a), (a), char *)
MAKES_TEMPORARY(int, -1, mkstemps, (char *a, int b), (a, b), char *, int)
MAKES_TEMPORARY(int, -1, mkostemp, (char *a, int b), (a, b), char *, int)
MAKES_TEMPORARY(int, -1, mkostemps, (char *a, int b, int c), (a, b, c), char *, int, int)
MAKES_TEMPORARY(char *, NULL, mkdtemp, (char *a), (a), char *)

/* Variables. Installed code has some that say where to search and how to word messages; what it finds is noted itself. */
static int is_of_messages(const char *name) {
    static const char *const names[] = {"PATH", "HOME", "PWD", "OLDPWD", "LANG", "LANGUAGE", "TERM", "COLUMNS", "LINES", "COLORTERM",
                                        "NO_COLOR", "FORCE_COLOR", "GCC_COLORS", "TMP", "TEMP", 0};
    for (const char *const *one = names; *one; ++one)
        if (!strcmp(*one, name)) return 1;
    return !strncmp(name, "LC_", 3);
}

static void note_variable(const char *name, int found, const void *caller) {
    if (!shared || shared->silent || busy || !name) return;
    if (is_of_messages(name)) {
        Dl_info by;
        if (is_tool) return;
        if (dladdr(caller, &by) && by.dli_fname && (strstr(by.dli_fname, "-packages/") || !strncmp(by.dli_fname, "/usr/", 5) || !strncmp(by.dli_fname, "/lib", 4))) return;
    }
    note_text(VARIABLE, found, name);
}
REAL(char *, getenv, const char *)
VISIBLE char *getenv(const char *name) {
    if (!shared && !real_getenv) return (char *)find_variable(environ, name);
    char *value = libc_getenv()(name);
    note_variable(name, value != NULL, __builtin_return_address(0));
    return value;
}
REAL(char *, secure_getenv, const char *)
VISIBLE char *secure_getenv(const char *name) {
    char *value = libc_secure_getenv()(name);
    note_variable(name, value != NULL, __builtin_return_address(0));
    return value;
}
/* libc reads the time zone's variable itself. */
#define READS_ZONE(result, name, parameters, arguments, ...)                       \
    REAL(result, name, __VA_ARGS__)                                                \
    VISIBLE result name parameters {                                               \
        const char *zone = find_variable(environ, "TZ");                           \
        note_text(VARIABLE, zone != NULL, "TZ");                                   \
        return libc_##name() arguments;                                            \
    }
READS_ZONE(struct tm *, localtime, (const time_t *a), (a), const time_t *)
READS_ZONE(struct tm *, localtime_r, (const time_t *a, struct tm *b), (a, b), const time_t *, struct tm *)
READS_ZONE(time_t, mktime, (struct tm *a), (a), struct tm *)
REAL(int, shm_open, const char *, int, mode_t)
VISIBLE int shm_open(const char *name, int flags, mode_t mode) {
    char path[LONGEST];
    snprintf(path, sizeof path, "/dev/shm/%s", name + strspn(name, "/"));
    int makes = would_create(AT_FDCWD, path, flags), result = libc_shm_open()(name, flags, mode);
    note_open(AT_FDCWD, path, flags, makes, result);
    return result;
}
static void note_address(const struct sockaddr *address, socklen_t length, int failed) {
    int saved = errno;
    if (address && address->sa_family == AF_UNIX && length > sizeof(sa_family_t)) {
        const char *path = ((const struct sockaddr_un *)address)->sun_path;
        int is_absent = failed && !was_there(0);
        if (*path == '/' || (*path && is_absent)) note_path(is_absent ? TESTED : CONNECTED, !is_absent, AT_FDCWD, path);
        else note_text(HIDDEN, 1, "a connection to another program");
    } else if (address && (address->sa_family == AF_INET || address->sa_family == AF_INET6)) {
        note_text(HIDDEN, 1, "a connection to another program");
    }
    errno = saved;
}
REAL(ssize_t, sendto, int, const void *, size_t, int, const struct sockaddr *, socklen_t)
VISIBLE ssize_t sendto(int file, const void *data, size_t size, int flags, const struct sockaddr *address, socklen_t length) {
    ssize_t result = libc_sendto()(file, data, size, flags, address, length);
    note_address(address, length, result < 0);
    return result;
}
REAL(ssize_t, sendmsg, int, const struct msghdr *, int)
VISIBLE ssize_t sendmsg(int file, const struct msghdr *message, int flags) {
    ssize_t result = libc_sendmsg()(file, message, flags);
    if (message) note_address(message->msg_name, message->msg_namelen, result < 0);
    return result;
}
REAL(int, bind, int, const struct sockaddr *, socklen_t)
VISIBLE int bind(int file, const struct sockaddr *address, socklen_t length) {
    /* Others may send to it. */
    if (address && (address->sa_family == AF_INET || address->sa_family == AF_INET6)) note_address(address, length, 0);
    return libc_bind()(file, address, length);
}
REAL(int, connect, int, const struct sockaddr *, socklen_t)
VISIBLE int connect(int file, const struct sockaddr *address, socklen_t length) {
    int result = libc_connect()(file, address, length);
    note_address(address, length, result);
    return result;
}

/* From here on names may mean other files, or the observer may be left behind. */
#define LEAVES(result, name, parameters, arguments, is_other, ...)                 \
    REAL(result, name, __VA_ARGS__)                                                \
    VISIBLE result name parameters {                                               \
        if (is_other) note_text(HIDDEN, 1, #name "() leaves the observer's scope"); \
        return libc_##name() arguments;                                            \
    }
LEAVES(int, chroot, (const char *a), (a), 1, const char *)
LEAVES(int, unshare, (int a), (a), a & ~(CLONE_FILES | CLONE_FS | CLONE_SYSVSEM), int)
LEAVES(int, setns, (int a, int b), (a, b), 1, int, int)
LEAVES(int, setuid, (uid_t a), (a), a != geteuid(), uid_t)
LEAVES(int, seteuid, (uid_t a), (a), a != geteuid(), uid_t)
LEAVES(int, setreuid, (uid_t a, uid_t b), (a, b), b != (uid_t)-1 && b != geteuid(), uid_t, uid_t)
LEAVES(int, setresuid, (uid_t a, uid_t b, uid_t c), (a, b, c), b != (uid_t)-1 && b != geteuid(), uid_t, uid_t, uid_t)
LEAVES(void *, dlmopen, (Lmid_t a, const char *b, int c), (a, b, c), a != LM_ID_BASE, Lmid_t, const char *, int)

/* Programs. A child gets the settings that it needs to be observed, whatever environment it is given. */
static int may_run(const char *path) {
    int saved = errno, is_safe;
    ++busy;
    is_safe = is_trusted(path);
    --busy;
    if (is_safe) { errno = saved; return 1; }
    note_path(REFUSED, 1, AT_FDCWD, path);
    errno = EACCES;
    return 0;
}

/* The most entries that a child's environment has besides those it is given, with the NULL at its end. */
enum { SETTINGS = 4 + MARKS / 32 + 1 };

static size_t count_entries(char *const *list) {
    size_t length = 0;
    while (list && list[length]) ++length;
    return length + SETTINGS;
}

/* A referee starts its candidates' processes unobserved: they must not write into this log, nor be stopped or killed while
 * they hold a slot of it. */
static void complete_environment(char **into, char *const *given) {
    int is_observed = shared && !(given && find_variable((char **)given, OFF_VARIABLE));
    char *const settings[] = {log_setting, preload_setting, audit_setting, trust_setting};
    size_t at = 0;
    for (; given && given[at]; ++at) into[at] = given[at];
    for (size_t one = 0; is_observed && one < 4; ++one) {
        size_t name = strcspn(settings[one], "=") + 1, place = 0;
        if (!*settings[one]) continue;
        while (place < at && strncmp(into[place], settings[one], name)) ++place;
        /* Its parent may want another library preloaded: leave that, and note that the child is not observed. */
        if (place < at && one && strcmp(into[place], settings[one])) note_text(HIDDEN, 1, "a program with a preloaded library of its own");
        if (place == at) into[at++] = settings[one];
    }
    size_t marks = 0;
    for (char *mark = NULL; marks++ < MARKS / 32 && (mark = next_mark(mark));) {
        size_t place = 0;
        while (place < at && !has_same_name(into[place], mark)) ++place;
        into[place] = mark;
        at += place == at;
    }
    into[at] = NULL;
}

/* Note a program, and of a script its interpreter, which the kernel starts. */
static void note_program(const char *path) {
    note_path(EXECUTED, was_there(!quietly(SYS_faccessat, AT_FDCWD, path, X_OK, 0)), AT_FDCWD, path);
    char line[256];
    int saved = errno;
    long file = quietly(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    long length = file < 0 ? 0 : quietly(SYS_read, file, line, sizeof line - 1);
    if (file >= 0) quietly(SYS_close, file);
    if (length > 3 && line[0] == '#' && line[1] == '!') {
        line[length] = 0;
        char *name = line + 2 + strspn(line + 2, " \t");
        name[strcspn(name, " \t\n")] = 0;
        if (*name == '/') note_path(EXECUTED, !quietly(SYS_faccessat, AT_FDCWD, name, X_OK, 0), AT_FDCWD, name);
    }
    errno = saved;
}

/* The loader itself can be run, with a program as an argument. */
static void note_arguments(const char *path, char *const *arguments) {
    const char *name = strrchr(path, '/');
    if (strncmp(name ? name + 1 : path, "ld", 2) || !strstr(path, ".so")) return;
    for (size_t at = 1; arguments && arguments[0] && arguments[at]; ++at)
        if (strchr(arguments[at], '/')) note_program(arguments[at]);
}

REAL(int, execve, const char *, char *const *, char *const *)
VISIBLE int execve(const char *path, char *const *arguments, char *const *environment) {
    note_program(path);
    note_arguments(path, arguments);
    if (!may_run(path)) return -1;
    char *whole[count_entries(environment)];
    complete_environment(whole, environment);
    return libc_execve()(path, arguments, whole);
}

/* Find a program as execvp does, and note each place that is tried; return the place of the last attempt. */
static const char *find_program(const char *name, char *into) {
    if (strchr(name, '/')) return name;
    const char *places = find_variable(environ, "PATH");
    for (const char *place = places ? places : "/bin:/usr/bin";; ++place) {
        size_t length = strcspn(place, ":");
        if (length + strlen(name) + 2 < LONGEST) {
            snprintf(into, LONGEST, "%.*s%s%s", (int)length, place, length ? "/" : "./", name);
            note_program(into);
            if (!quietly(SYS_faccessat, AT_FDCWD, into, X_OK, 0)) return into;
        }
        place += length;
        if (!*place) return name;
    }
}

REAL(int, execvpe, const char *, char *const *, char *const *)
VISIBLE int execvpe(const char *name, char *const *arguments, char *const *environment) {
    char path[LONGEST];
    const char *found = find_program(name, path);
    note_program(found);
    if (strchr(found, '/') && !may_run(found)) return -1;
    char *whole[count_entries(environment)];
    complete_environment(whole, environment);
    return libc_execvpe()(name, arguments, whole);
}
VISIBLE int execv(const char *path, char *const *arguments) { return execve(path, arguments, environ); }
VISIBLE int execvp(const char *name, char *const *arguments) { return execvpe(name, arguments, environ); }
#define COLLECT                                                                    \
    va_list rest, again; va_start(rest, first); va_copy(again, rest);              \
    size_t count = 1; while (va_arg(rest, char *)) ++count;                        \
    char *arguments[count + 1]; arguments[0] = (char *)first;                      \
    for (size_t at = 1; at <= count; ++at) arguments[at] = va_arg(again, char *)
VISIBLE int execl(const char *path, const char *first, ...) { COLLECT; return execve(path, arguments, environ); }
VISIBLE int execlp(const char *name, const char *first, ...) { COLLECT; return execvpe(name, arguments, environ); }
VISIBLE int execle(const char *path, const char *first, ...) { COLLECT; return execve(path, arguments, va_arg(again, char **)); }

#define SPAWNS(name, path_of)                                                      \
    REAL(int, name, pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const *, char *const *) \
    VISIBLE int name(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes, \
                     char *const *arguments, char *const *environment) {           \
        char path[LONGEST]; (void)path;                                            \
        const char *found = path_of;                                               \
        note_program(found);                                                       \
        note_arguments(found, arguments);                                          \
        if (strchr(found, '/') && !may_run(found)) return EACCES;                  \
        char *whole[count_entries(environment)];                               \
        complete_environment(whole, environment);                                  \
        return libc_##name()(pid, file, actions, attributes, arguments, whole);    \
    }
SPAWNS(posix_spawn, file) SPAWNS(posix_spawnp, find_program(file, path))

/* What a child opens before it runs its program. */
REAL(int, posix_spawn_file_actions_addopen, posix_spawn_file_actions_t *, int, const char *, int, mode_t)
VISIBLE int posix_spawn_file_actions_addopen(posix_spawn_file_actions_t *actions, int file, const char *path, int flags, mode_t mode) {
    int makes = would_create(AT_FDCWD, path, flags);
    int is_there = !quietly(SYS_faccessat, AT_FDCWD, path, F_OK, 0);
    errno = ENOENT;
    note_open(AT_FDCWD, path, flags, makes, is_there || makes ? 0 : -1);
    return libc_posix_spawn_file_actions_addopen()(actions, file, path, flags, mode);
}
REAL(int, fexecve, int, char *const *, char *const *)
VISIBLE int fexecve(int file, char *const *arguments, char *const *environment) {
    note_path(EXECUTED, 1, file, "");
    char *whole[count_entries(environment)];
    complete_environment(whole, environment);
    return libc_fexecve()(file, arguments, whole);
}
/* System calls that a process makes past libc's other functions. */
VISIBLE long syscall(long number, ...) {
    va_list rest;
    va_start(rest, number);
    long a = va_arg(rest, long), b = va_arg(rest, long), c = va_arg(rest, long), d = va_arg(rest, long), e = va_arg(rest, long), f = va_arg(rest, long);
    va_end(rest);
    long result = libc_syscall()(number, a, b, c, d, e, f);
    if (busy) return result;
    int failed = result < 0 ? -1 : 0;
    switch (number) {
#ifdef SYS_open
    case SYS_open: note_open(AT_FDCWD, (const char *)a, (int)b, 0, failed); break;
    case SYS_stat: case SYS_lstat: case SYS_access: note_path(TESTED, was_there(!failed), AT_FDCWD, (const char *)a); break;
    case SYS_readlink: note_path(FOLLOWED, was_there(!failed), AT_FDCWD, (const char *)a); break;
#endif
    case SYS_openat: note_open((int)a, (const char *)b, (int)c, 0, failed); break;
    case SYS_statx: case SYS_newfstatat: case SYS_faccessat:
        if (b && *(const char *)b) note_path(TESTED, was_there(!failed), (int)a, (const char *)b);
        break;
    case SYS_readlinkat: note_path(FOLLOWED, was_there(!failed), (int)a, (const char *)b); break;
    case 437 /* openat2 */: case 425 /* io_uring_setup */: case SYS_execve: case SYS_execveat: case SYS_open_by_handle_at:
        note_text(HIDDEN, 1, "a system call past libc");
        break;
    case SYS_getdents64: note_path(LISTED, 1, (int)a, ""); break;
    case SYS_chroot: case SYS_unshare: case SYS_setns: case SYS_mount: case SYS_pivot_root:
        note_text(HIDDEN, 1, "a system call that leaves the observer's scope");
    }
    return result;
}

/* libc is searched by a handle of its own, or a library binds to it first: then its functions would pass the observer by.
 * A lookup of a function that the observer replaces is given the replacement; a deep binding is noted. The loader looks at
 * the address that it returns to, to find its caller's scope, so both are entered by a jump. */
#if defined __x86_64__ || defined __aarch64__
#ifdef __x86_64__
#define OLDEST "GLIBC_2.2.5"
#else
#define OLDEST "GLIBC_2.17"
#endif
static void *(*real_dlopen)(const char *, int);
static void *(*real_dlsym)(void *, const char *);
__attribute__((used)) static void note_binding(const char *name, int flags) {
    if (!real_dlopen) *(void **)&real_dlopen = dlvsym(RTLD_NEXT, "dlopen", OLDEST);
    (void)name;
    if (flags & RTLD_DEEPBIND) note_text(HIDDEN, 1, "a library that binds to libc before the observer (RTLD_DEEPBIND)");
}
__attribute__((used)) static void *find_replacement(void *handle, const char *name) {
    static const void *own, *libc;
    Dl_info found;
    if (!real_dlsym) *(void **)&real_dlsym = dlvsym(RTLD_NEXT, "dlsym", OLDEST);
    if (handle == RTLD_NEXT || handle == RTLD_DEFAULT || !shared) return NULL;
    if (!libc && dladdr((void *)find_replacement, &found)) {
        own = found.dli_fbase;
        if (dladdr(dlvsym(RTLD_NEXT, "getpid", OLDEST), &found)) libc = found.dli_fbase;
    }
    void *ours = real_dlsym(RTLD_DEFAULT, name);
    if (!ours || !dladdr(ours, &found) || found.dli_fbase != own) return NULL;
    void *theirs = real_dlsym(handle, name);
    return theirs && dladdr(theirs, &found) && found.dli_fbase == libc ? ours : NULL;
}
#ifdef __x86_64__
__asm__(".globl dlopen\n.type dlopen,@function\ndlopen:\n push %rdi\n push %rsi\n sub $8,%rsp\n call note_binding\n"
        " add $8,%rsp\n pop %rsi\n pop %rdi\n jmp *real_dlopen(%rip)\n.size dlopen,.-dlopen\n"
        ".globl dlsym\n.type dlsym,@function\ndlsym:\n push %rdi\n push %rsi\n sub $8,%rsp\n call find_replacement\n"
        " add $8,%rsp\n pop %rsi\n pop %rdi\n test %rax,%rax\n jnz 1f\n jmp *real_dlsym(%rip)\n1: ret\n.size dlsym,.-dlsym\n");
#else
__asm__(".globl dlopen\n.type dlopen,%function\ndlopen:\n stp x29,x30,[sp,#-32]!\n stp x0,x1,[sp,#16]\n bl note_binding\n"
        " ldp x0,x1,[sp,#16]\n ldp x29,x30,[sp],#32\n adrp x16,real_dlopen\n ldr x16,[x16,#:lo12:real_dlopen]\n br x16\n"
        ".size dlopen,.-dlopen\n.globl dlsym\n.type dlsym,%function\ndlsym:\n stp x29,x30,[sp,#-32]!\n stp x0,x1,[sp,#16]\n"
        " bl find_replacement\n mov x9,x0\n ldp x0,x1,[sp,#16]\n ldp x29,x30,[sp],#32\n cbnz x9,1f\n adrp x16,real_dlsym\n"
        " ldr x16,[x16,#:lo12:real_dlsym]\n br x16\n1: mov x0,x9\n ret\n.size dlsym,.-dlsym\n");
#endif
#endif

/* The loader's own searches and mappings, in its audit name space. */
VISIBLE unsigned int la_version(unsigned int version) {
    open_log(0, NULL, environ);
    return shared && version < LAV_CURRENT ? version : shared ? LAV_CURRENT : 0;
}
VISIBLE char *la_objsearch(const char *name, uintptr_t *cookie, unsigned int flag) {
    (void)cookie;
    if (!strchr(name, '/')) return (char *)name;
    int found = !quietly(SYS_faccessat, AT_FDCWD, name, R_OK, 0);
    (void)flag;
    note_path(SEARCHED, found, AT_FDCWD, name);
    return found && !may_run(name) ? NULL : (char *)name;
}
VISIBLE unsigned int la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie) {
    (void)space, (void)cookie;
    if (map->l_name && *map->l_name) note_path(MAPPED, 1, AT_FDCWD, map->l_name);
    return 0;
}

/* Reports of memory faults (worker/fault_reporter.py has the same struct). Python's handlers would run too late or never:
 * a fault in an OpenMP thread would wait for the interpreter's lock, which the thread that launched the kernel holds. */
struct region { uintptr_t start, size, first, end; const char *name; };
static const struct region *regions;
static size_t region_count;
static int report_file;
static off_t report_at;
static pid_t reporting;
static struct sigaction following[NSIG];

static void report_fault(int number, siginfo_t *info, void *context) {
#ifdef __x86_64__
    /* Bit 1 of a page fault's error code is a write (Intel SDM volume 3, 4.7). */
    const char *verb = ((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2 ? "wrote" : "read";
#else
    const char *verb = "read or wrote";
    (void)context;
#endif
    uintptr_t at = (uintptr_t)info->si_addr;
    /* A child that user code has forked is not the worker, and its signals are its own. A positive code is a fault's. */
    for (size_t which = 0; info->si_code > 0 && getpid() == reporting && which < region_count; ++which) {
        const struct region *of = &regions[which];
        if (at < of->first || at >= of->end) continue;
        uintptr_t end = of->start + of->size;
        const char *words = at < of->start ? "%s outside its tensors: %zu bytes before %s"
                            : at < end     ? "%s outside its tensors: at byte %zu of %s"
                                           : "%s outside its tensors: %zu bytes after %s";
        char text[256] = "";
        snprintf(text, sizeof text, words, verb, at < of->start ? of->start - at : at - (at < end ? of->start : end), of->name);
        if (pwrite(report_file, text, sizeof text, report_at) < 0) break;
    }
    /* The instruction faults again when this returns, and the handler that was there before has it. */
    sigaction(number, &following[number], NULL);
    if (info->si_code <= 0) raise(number);
}

/* Report faults in these regions from now on: write each in words, ended by a NUL, to a place in an open file. */
VISIBLE void ktuned_report_faults(int file, off_t place, const struct region *watched, size_t count) {
    struct sigaction action = {.sa_sigaction = report_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    report_file = file, report_at = place, reporting = getpid();
    regions = watched, region_count = count;
    sigaction(SIGSEGV, &action, &following[SIGSEGV]);
    sigaction(SIGBUS, &action, &following[SIGBUS]);
}
