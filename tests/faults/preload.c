/* Preloaded into a service: records what it does to the files below one directory, and fails calls.

   FAULTS_ROOT     directory that is watched, absolute
   FAULTS_JOURNAL  file to which records are appended; unset: nothing is recorded
   FAULTS_CONTROL  file of CONTROL_BYTES that the harness maps too; unset: nothing fails

   A write is recorded when it has been made, a sync before and after it: what is recorded in front
   of "sync begins" is what that sync covers. Syncs are not made at all while they are recorded; what
   a power cut leaves is worked out of the records (disk_model.py, which has the same layout). */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { CREATE = 1, WRITE, SIZE, GROW, SYNC_BEGIN, SYNC_END, SYNC_FAILED, DIR_SYNC, RENAME, UNLINK,
       MKDIR };
#define MAGIC 0x544c4146u

struct head {
    uint32_t magic, kind;
    uint64_t time_ns, inode, at;
    uint32_t path_bytes, data_bytes;
};

struct control {
    int64_t sync_countdown; /* < 0: no sync fails; else that many succeed before one fails */
    int64_t sync_errno;
    int64_t injected;       /* how many calls were failed */
    int64_t disk_full;      /* 1: what needs new blocks fails */
    int64_t clock_offset_ns;
    int64_t write_errno;    /* not 0: writes fail with it */
    char path[208];         /* only syncs and writes of files whose path holds this fail */
};

#define FDS 65536
static char root[PATH_MAX];
static size_t root_bytes;
static int journal = -1;
static struct control *control;
static struct control no_control = {.sync_countdown = -1};
static char watched[FDS]; /* 0: unknown, 1: below root, 2: not */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(result, name, ...)                                        \
    static result (*real_##name)(__VA_ARGS__);                        \
    static inline void find_##name(void) {                             \
        if (!real_##name) real_##name = dlsym(RTLD_NEXT, #name);       \
    }

REAL(int, open64, const char *, int, ...)
REAL(int, openat64, int, const char *, int, ...)
REAL(int, close, int)
REAL(ssize_t, write, int, const void *, size_t)
REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t)
REAL(int, ftruncate64, int, off64_t)
REAL(int, posix_fallocate64, int, off64_t, off64_t)
REAL(int, fsync, int)
REAL(int, fdatasync, int)
REAL(int, renameat, int, const char *, int, const char *)
REAL(int, unlinkat, int, const char *, int)
REAL(int, mkdirat, int, const char *, mode_t)
REAL(int, clock_gettime, clockid_t, struct timespec *)

__attribute__((constructor)) static void set_up(void) {
    find_open64(); find_openat64(); find_close(); find_write(); find_pwrite64();
    find_ftruncate64(); find_posix_fallocate64(); find_fsync(); find_fdatasync();
    find_renameat(); find_unlinkat(); find_mkdirat(); find_clock_gettime();
    if (!control) control = &no_control;
    const char *path = getenv("FAULTS_CONTROL");
    if (path) {
        int fd = real_open64(path, O_RDWR | O_CLOEXEC);
        void *memory = fd < 0 ? MAP_FAILED
                              : mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (memory == MAP_FAILED) { perror("FAULTS_CONTROL"); _exit(99); }
        control = memory;
        real_close(fd);
    }
    path = getenv("FAULTS_ROOT");
    if (!path || !*path) return;
    snprintf(root, sizeof root, "%s", path);
    root_bytes = strlen(root);
    path = getenv("FAULTS_JOURNAL");
    if (path) {
        int fd = real_open64(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        /* Out of the way of programs that count on low numbers, and of limits on them. */
        journal = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 900);
        if (journal < 0) { perror("FAULTS_JOURNAL"); _exit(99); }
        real_close(fd);
    }
}

static int is_below(const char *path) {
    return root_bytes && !strncmp(path, root, root_bytes) &&
           (path[root_bytes] == '/' || !path[root_bytes]);
}

/* The absolute path that a call names; it may end nowhere. */
static const char *resolve(int directory, const char *path, char *space) {
    if (path[0] == '/') return path;
    char link[64];
    ssize_t length;
    if (directory == AT_FDCWD) {
        if (!getcwd(space, PATH_MAX)) return "";
        length = strlen(space);
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
        length = readlink(link, space, PATH_MAX - 1);
        if (length < 0) return "";
    }
    snprintf(space + length, PATH_MAX - length, "/%s", path);
    return space;
}

static int fd_is_watched(int fd) {
    if (!root_bytes || fd < 0 || fd >= FDS) return 0;
    if (!watched[fd]) {
        char link[64], target[PATH_MAX];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, target, sizeof target - 1);
        target[length < 0 ? 0 : length] = 0;
        watched[fd] = is_below(target) ? 1 : 2;
    }
    return watched[fd] == 1;
}

static void record(uint32_t kind, uint64_t inode, uint64_t at, const char *path, size_t path_bytes,
                   const void *data, size_t data_bytes) {
    if (journal < 0) return;
    int saved = errno;
    struct timespec now;
    pthread_mutex_lock(&lock);
    real_clock_gettime(CLOCK_MONOTONIC, &now);
    struct head head = {MAGIC, kind, now.tv_sec * 1000000000ull + now.tv_nsec, inode, at,
                        path_bytes, data_bytes};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)path, path_bytes},
                            {(void *)data, data_bytes}};
    if (writev(journal, parts, 3) != (ssize_t)(sizeof head + path_bytes + data_bytes)) {
        perror("the journal of faults");
        _exit(99);
    }
    pthread_mutex_unlock(&lock);
    errno = saved;
}

static void record_path(uint32_t kind, uint64_t inode, const char *path) {
    record(kind, inode, 0, path, strlen(path), NULL, 0);
}

static uint64_t inode_of(int fd) {
    struct stat64 status;
    return fstat64(fd, &status) ? 0 : status.st_ino;
}

/* Files. */

static int opened(int fd, const char *path, int flags, int was_there) {
    if (fd < 0 || fd >= FDS) return fd;
    watched[fd] = is_below(path) ? 1 : 2;
    if (watched[fd] == 1) {
        if ((flags & O_CREAT) && !was_there) record_path(CREATE, inode_of(fd), path);
        else if (flags & O_TRUNC) record(SIZE, inode_of(fd), 0, NULL, 0, NULL, 0);
    }
    return fd;
}

static int open_any(int directory, const char *path, int flags, mode_t mode) {
    char space[PATH_MAX];
    const char *whole = root_bytes ? resolve(directory, path, space) : path;
    int saved = errno;
    int was_there = !is_below(whole) || !access(whole, F_OK);
    errno = saved;
    if (!was_there && (flags & O_CREAT) && control->disk_full) {
        control->injected++;
        errno = ENOSPC;
        return -1;
    }
    find_openat64();
    return opened(real_openat64(directory, path, flags, mode), whole, flags, was_there);
}

#define MODE(flags)                            \
    mode_t mode = 0;                           \
    if (flags & (O_CREAT | __O_TMPFILE)) {     \
        va_list more;                          \
        va_start(more, flags);                 \
        mode = va_arg(more, mode_t);           \
        va_end(more);                          \
    }

int open(const char *path, int flags, ...) { MODE(flags) return open_any(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_any(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags) return open_any(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags) return open_any(at, path, flags, mode); }

int close(int fd) {
    find_close();
    if (fd == journal && fd >= 0) return 0; /* a program that closes all that it does not know */
    if (fd >= 0 && fd < FDS) watched[fd] = 0;
    return real_close(fd);
}

/* Whether a write at a place would need blocks that the file has not yet. */
static int needs_blocks(int fd, uint64_t end) {
    struct stat64 status;
    if (fstat64(fd, &status)) return 0;
    return end > (uint64_t)status.st_size || status.st_blocks * 512 < status.st_size;
}

static int path_counts(int fd) {
    char link[64], target[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, target, sizeof target - 1);
    target[length < 0 ? 0 : length] = 0;
    return strstr(target, control->path) != NULL;
}

/* The errno with which a write up to `end` fails, 0 if it does not. */
static int refused(int fd, uint64_t end) {
    int number = 0;
    if (control->disk_full && needs_blocks(fd, end)) number = ENOSPC;
    else if (control->write_errno && path_counts(fd)) number = control->write_errno;
    if (number) control->injected++;
    return number;
}

static int refuse(int fd, uint64_t end) {
    int number = refused(fd, end);
    if (number) errno = number;
    return number;
}

ssize_t pwrite64(int fd, const void *data, size_t count, off64_t at) {
    find_pwrite64();
    if (!fd_is_watched(fd)) return real_pwrite64(fd, data, count, at);
    if (refuse(fd, at + count)) return -1;
    ssize_t done = real_pwrite64(fd, data, count, at);
    if (done > 0) record(WRITE, inode_of(fd), at, NULL, 0, data, done);
    return done;
}
ssize_t pwrite(int fd, const void *data, size_t count, off_t at) { return pwrite64(fd, data, count, at); }

ssize_t write(int fd, const void *data, size_t count) {
    find_write();
    if (!fd_is_watched(fd)) return real_write(fd, data, count);
    struct stat64 status;
    int appends = fcntl(fd, F_GETFL) & O_APPEND;
    off64_t at = appends && !fstat64(fd, &status) ? status.st_size : lseek64(fd, 0, SEEK_CUR);
    if (refuse(fd, at + count)) return -1;
    ssize_t done = real_write(fd, data, count);
    if (done > 0) record(WRITE, inode_of(fd), at, NULL, 0, data, done);
    return done;
}

int ftruncate64(int fd, off64_t size) {
    find_ftruncate64();
    int result = real_ftruncate64(fd, size);
    if (!result && fd_is_watched(fd)) record(SIZE, inode_of(fd), size, NULL, 0, NULL, 0);
    return result;
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

int posix_fallocate64(int fd, off64_t at, off64_t count) {
    find_posix_fallocate64();
    if (!fd_is_watched(fd)) return real_posix_fallocate64(fd, at, count);
    int result = refused(fd, at + count);
    if (result) return result;
    result = real_posix_fallocate64(fd, at, count);
    if (!result) record(GROW, inode_of(fd), at + count, NULL, 0, NULL, 0);
    return result;
}
int posix_fallocate(int fd, off_t at, off_t count) { return posix_fallocate64(fd, at, count); }

/* Syncs. */

static int sync_any(int fd, int (*real)(int)) {
    if (!fd_is_watched(fd)) return real(fd);
    struct stat64 status;
    if (fstat64(fd, &status)) return -1;
    if (S_ISDIR(status.st_mode)) {
        char link[64], target[PATH_MAX];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, target, sizeof target - 1);
        target[length < 0 ? 0 : length] = 0;
        record_path(DIR_SYNC, status.st_ino, target);
        return journal < 0 ? real(fd) : 0;
    }
    int fails = 0;
    if (control->sync_countdown >= 0 && path_counts(fd)) {
        pthread_mutex_lock(&lock);
        if (control->sync_countdown >= 0) fails = control->sync_countdown-- == 0;
        pthread_mutex_unlock(&lock);
    }
    record(SYNC_BEGIN, status.st_ino, 0, NULL, 0, NULL, 0);
    if (fails) {
        record(SYNC_FAILED, status.st_ino, 0, NULL, 0, NULL, 0);
        control->injected++;
        errno = control->sync_errno;
        return -1;
    }
    int result = journal < 0 ? real(fd) : 0;
    if (!result) record(SYNC_END, status.st_ino, 0, NULL, 0, NULL, 0);
    return result;
}

int fsync(int fd) { find_fsync(); return sync_any(fd, real_fsync); }
int fdatasync(int fd) { find_fdatasync(); return sync_any(fd, real_fdatasync); }

/* Names. */

int renameat(int from_at, const char *from, int to_at, const char *to) {
    find_renameat();
    char one[PATH_MAX], other[PATH_MAX], both[2 * PATH_MAX];
    const char *source = resolve(from_at, from, one), *target = resolve(to_at, to, other);
    int result = real_renameat(from_at, from, to_at, to);
    if (!result && (is_below(source) || is_below(target))) {
        int length = snprintf(both, sizeof both, "%s%c%s", source, 0, target);
        record(RENAME, 0, 0, both, length, NULL, 0);
    }
    return result;
}
int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }

int unlinkat(int at, const char *path, int flags) {
    find_unlinkat();
    char space[PATH_MAX];
    const char *whole = resolve(at, path, space);
    int result = real_unlinkat(at, path, flags);
    if (!result && is_below(whole)) record_path(UNLINK, 0, whole);
    return result;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int at, const char *path, mode_t mode) {
    find_mkdirat();
    char space[PATH_MAX];
    const char *whole = resolve(at, path, space);
    int result = real_mkdirat(at, path, mode);
    if (!result && is_below(whole)) record_path(MKDIR, 0, whole);
    return result;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

/* Time. */

int clock_gettime(clockid_t clock, struct timespec *now) {
    find_clock_gettime();
    int result = real_clock_gettime(clock, now);
    if (!result && control && control->clock_offset_ns &&
        (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t total = now->tv_sec * 1000000000ll + now->tv_nsec + control->clock_offset_ns;
        now->tv_sec = total / 1000000000ll;
        now->tv_nsec = total % 1000000000ll;
    }
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (into) *into = precise.tv_sec;
    return precise.tv_sec;
}
