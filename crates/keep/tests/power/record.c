/* Tells what a process does with the files below a folder: preloaded, it appends a record to the file named by RECORD_FILE for each call that
 * changes one below RECORD_FOLDER, in the order in which they are done. Files are told by a number of their own, which lasts as long as the
 * file does. Calls are done one by one, so that the order is the true one. A sync of a folder tells what is in it: also what
 * came there by a call that is not seen here.
 *
 *     cc -shared -fPIC -o record.so record.c -ldl
 *
 * A record: kind:1 file:8 at:8 length:8 bytes. Kinds: W bytes were written at a place; T the length was set; S the file was synced;
 * L a folder, by its name, has these files (number:8 is-folder:1 length:8 name), and D: it has them for good.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static int out = -1;
static const char *folder;
static size_t folder_length;

__attribute__((constructor)) static void begin(void) {
    folder = getenv("RECORD_FOLDER");
    folder_length = folder ? strlen(folder) : 0;
    const char *file = getenv("RECORD_FILE");
    if (file) out = REAL(open)(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static int is_within(const char *path) {
    return out >= 0 && folder_length > 0 && strncmp(path, folder, folder_length) == 0;
}

/* A process that exits ends its other threads wherever they are: none may be within a record. */
__attribute__((destructor)) static void end(void) {
    pthread_mutex_lock(&turn);
}

/* The path of a descriptor, if it is below the folder. */
static int known(int fd, char *path, struct stat *seen) {
    char link[64];
    if (out < 0 || fd == out) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, 1023);
    if (length <= 0) return 0;
    path[length] = 0;
    return is_within(path) && fstat(fd, seen) == 0;
}

static void tell(char kind, uint64_t file, uint64_t at, const void *bytes, uint64_t length) {
    char head[25];
    head[0] = kind;
    memcpy(head + 1, &file, 8);
    memcpy(head + 9, &at, 8);
    memcpy(head + 17, &length, 8);
    struct iovec parts[2] = {{head, sizeof head}, {(void *)bytes, length}};
    ssize_t done = REAL(writev)(out, parts, bytes ? 2 : 1);
    if (done != (ssize_t)(sizeof head + (bytes ? length : 0))) abort();
}

/* Tells what is in a folder. */
static void list(char kind, const char *path) {
    static char text[1 << 16];
    size_t length = strlen(path) - folder_length + 1;
    memcpy(text, path + folder_length, length);
    DIR *open_folder = opendir(path);
    if (!open_folder) return;
    for (struct dirent *entry; (entry = readdir(open_folder));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        uint64_t number = entry->d_ino, name = strlen(entry->d_name);
        if (length + name + 17 > sizeof text) abort();
        memcpy(text + length, &number, 8);
        text[length + 8] = entry->d_type == DT_DIR;
        memcpy(text + length + 9, &name, 8);
        memcpy(text + length + 17, entry->d_name, name);
        length += name + 17;
    }
    closedir(open_folder);
    tell(kind, 0, 0, text, length);
}

/* Tells what is in the folder that a file is in. */
static void list_above(const char *path) {
    char above[1024];
    snprintf(above, sizeof above, "%s", path);
    char *end = strrchr(above, '/');
    if (end) *end = 0;
    if (is_within(above)) list('L', above);
}

#define BEGIN pthread_mutex_lock(&turn)
#define END pthread_mutex_unlock(&turn)

static int open_one(const char *path, int flags, mode_t mode) {
    int changes = is_within(path) && (flags & (O_CREAT | O_TRUNC));
    if (!changes) return REAL(open)(path, flags, mode);
    BEGIN;
    int was_there = access(path, F_OK) == 0, fd = REAL(open)(path, flags, mode);
    struct stat seen;
    if (fd >= 0 && fstat(fd, &seen) == 0) {
        /* Its number may have been that of a file which is gone. */
        if (!was_there) tell('N', seen.st_ino, 0, NULL, 0);
        if (flags & O_TRUNC) tell('T', seen.st_ino, 0, NULL, 0);
        if (!was_there) list_above(path);
    }
    END;
    return fd;
}

int open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
    va_end(more);
    return open_one(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
    va_end(more);
    return open_one(path, flags, mode);
}

static void wrote(int fd, off_t at, const void *bytes, ssize_t done) {
    char path[1024];
    struct stat seen;
    if (done > 0 && known(fd, path, &seen)) tell('W', seen.st_ino, at, bytes, done);
}

ssize_t write(int fd, const void *bytes, size_t length) {
    if (fd <= 2 || out < 0) return REAL(write)(fd, bytes, length);
    BEGIN;
    ssize_t done = REAL(write)(fd, bytes, length);
    off_t after = done > 0 ? lseek(fd, 0, SEEK_CUR) : 0;
    wrote(fd, after - done, bytes, done);
    END;
    return done;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (fd <= 2 || out < 0) return REAL(writev)(fd, parts, count);
    ssize_t all = 0;
    for (int i = 0; i < count; i++) {
        ssize_t done = write(fd, parts[i].iov_base, parts[i].iov_len);
        if (done < 0) return all > 0 ? all : done;
        all += done;
        if (done < (ssize_t)parts[i].iov_len) break;
    }
    return all;
}

static ssize_t put(int fd, const void *bytes, size_t length, off_t at) {
    BEGIN;
    ssize_t done = REAL(pwrite64)(fd, bytes, length, at);
    wrote(fd, at, bytes, done);
    END;
    return done;
}
ssize_t pwrite(int fd, const void *bytes, size_t length, off_t at) { return put(fd, bytes, length, at); }
ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t at) { return put(fd, bytes, length, at); }

static int cut(int fd, off_t length) {
    BEGIN;
    int done = REAL(ftruncate64)(fd, length);
    char path[1024];
    struct stat seen;
    if (done == 0 && known(fd, path, &seen)) tell('T', seen.st_ino, length, NULL, 0);
    END;
    return done;
}
int ftruncate(int fd, off_t length) { return cut(fd, length); }
int ftruncate64(int fd, off64_t length) { return cut(fd, length); }

#define SYNC(name)                                                \
    int name(int fd) {                                            \
        BEGIN;                                                    \
        int done = REAL(name)(fd);                                \
        char path[1024];                                          \
        struct stat seen;                                         \
        if (done == 0 && known(fd, path, &seen)) {                \
            if (S_ISDIR(seen.st_mode)) list('D', path);           \
            else tell('S', seen.st_ino, 0, NULL, 0);              \
        }                                                         \
        END;                                                      \
        return done;                                              \
    }
SYNC(fsync)
SYNC(fdatasync)

/* What changes a folder, by path. */
#define CHANGES(name, call, path, ...)       \
    {                                        \
        if (!is_within(path)) return call;   \
        BEGIN;                               \
        int done = call;                     \
        if (done == 0) list_above(path);     \
        END;                                 \
        return done;                         \
    }
int rename(const char *from, const char *to) CHANGES(rename, REAL(rename)(from, to), to)
int unlink(const char *path) CHANGES(unlink, REAL(unlink)(path), path)
int rmdir(const char *path) CHANGES(rmdir, REAL(rmdir)(path), path)
int mkdir(const char *path, mode_t mode) CHANGES(mkdir, REAL(mkdir)(path, mode), path)
