/* Has the store's files fail on demand: preloaded into the server, it does what the file named by FAULT_FILE says,
 * from the moment on that this is there. "sync": syncs fail. "hold": syncs wait for the file to say something else. "slow": syncs take a fifth of a second longer. "full": the disk is full. "torn": the next write
 * writes half of its bytes, and the process is gone. Of the times that the map of partitions is put into place after that, counted from 1:
 * "place2" ends the process before the second, "placed2" after it; "stay2" has it fail; "unsure2" fails when the folder is synced
 * behind it. And the clock is behind by the seconds that CLOCK_BEHIND says.
 *
 *     cc -shared -fPIC -o faults.so faults.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* Whether this fault is asked for, and the descriptor is a file of the store. */
static int asked(const char *fault, int fd) {
    char text[16] = {0}, link[64], path[512] = {0};
    const char *name = getenv("FAULT_FILE");
    int file = name ? open(name, O_RDONLY) : -1;
    if (file < 0) return 0;
    ssize_t got = read(file, text, sizeof text - 1);
    close(file);
    if (got <= 0 || strcmp(text, fault) != 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return readlink(link, path, sizeof path - 1) > 0 && strstr(path, "/store/") != NULL;
}

/* How often the map of partitions was put into place since this fault was asked for. */
static int placed;

/* Whether this fault is asked for the time that is counted. */
static int asked_now(const char *fault) {
    char text[16] = {0}, wanted[16];
    const char *name = getenv("FAULT_FILE");
    int file = name ? open(name, O_RDONLY) : -1;
    if (file < 0) return 0;
    ssize_t got = read(file, text, sizeof text - 1);
    close(file);
    snprintf(wanted, sizeof wanted, "%s%d", fault, placed);
    return got > 0 && strcmp(text, wanted) == 0;
}

static int is_folder(int fd) {
    struct stat known;
    return fstat(fd, &known) == 0 && S_ISDIR(known.st_mode);
}

#define REAL(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))

#define SYNC(name)                     \
    int name(int fd) {                 \
        while (asked("hold", fd)) {    \
            usleep(1000);              \
        }                              \
        if (asked("slow", fd)) usleep(200 * 1000); \
        if (asked("sync", fd) || (is_folder(fd) && asked_now("unsure"))) { \
            errno = EIO;               \
            return -1;                 \
        }                              \
        return REAL(name)(fd);         \
    }
SYNC(fsync)
SYNC(fdatasync)

ssize_t write(int fd, const void *from, size_t len) {
    if (fd > 2 && asked("full", fd)) {
        errno = ENOSPC;
        return -1;
    }
    if (fd > 2 && len > 1 && asked("torn", fd)) {
        REAL(write)(fd, from, len / 2);
        _exit(1);
    }
    return REAL(write)(fd, from, len);
}

int rename(const char *from, const char *to) {
    if (strstr(to, "/headwater-placement") == NULL || access(getenv("FAULT_FILE"), F_OK) != 0) {
        return REAL(rename)(from, to);
    }
    placed++;
    if (asked_now("place")) _exit(1);
    if (asked_now("stay")) {
        errno = EIO;
        return -1;
    }
    int done = REAL(rename)(from, to);
    if (asked_now("placed")) _exit(1);
    return done;
}

/* The clock of the machine is so many seconds behind. */
int clock_gettime(clockid_t which, struct timespec *now) {
    const char *behind = getenv("CLOCK_BEHIND");
    int told = REAL(clock_gettime)(which, now);
    if (told == 0 && behind && which == CLOCK_REALTIME) now->tv_sec -= atoi(behind);
    return told;
}
