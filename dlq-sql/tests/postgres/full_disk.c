/* Preloaded into the server: while the file $FULL_DISK/data (or $FULL_DISK/wal) is there, no table (or log segment)
   grows: the file system says that it is full. What overwrites goes through, as on a real one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static int is_full(int fd, off64_t end)
{
    const char *folder = getenv("FULL_DISK");
    struct stat64 file;
    char link[64], path[4096];
    ssize_t length;
    const char *kind;

    if (folder == NULL || fstat64(fd, &file) != 0 || !S_ISREG(file.st_mode) || end <= file.st_size)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    kind = strstr(path, "/base/") ? "data" : strstr(path, "/pg_wal/") ? "wal" : NULL;
    if (kind == NULL)
        return 0;
    snprintf(path, sizeof path, "%s/%s", folder, kind);
    return access(path, F_OK) == 0;
}

static size_t total(const struct iovec *parts, int count)
{
    size_t sum = 0;
    for (int i = 0; i < count; i++)
        sum += parts[i].iov_len;
    return sum;
}

#define REAL(name, type) ((type) dlsym(RTLD_NEXT, name))
#define FULL(fd, end) if (is_full(fd, end)) { errno = ENOSPC; return -1; }

typedef ssize_t (*Write)(int, const void *, size_t);
typedef ssize_t (*Pwrite)(int, const void *, size_t, off64_t);
typedef ssize_t (*Pwritev)(int, const struct iovec *, int, off64_t);
typedef int (*Allocate)(int, off64_t, off64_t);

ssize_t write(int fd, const void *bytes, size_t count)
{
    int saved = errno;
    off64_t at = lseek64(fd, 0, SEEK_CUR);
    errno = saved;
    if (at >= 0)
        FULL(fd, at + (off64_t) count)
    return REAL("write", Write)(fd, bytes, count);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at)
{
    FULL(fd, at + (off64_t) count)
    return REAL("pwrite64", Pwrite)(fd, bytes, count, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at)
{
    FULL(fd, at + (off64_t) count)
    return REAL("pwrite64", Pwrite)(fd, bytes, count, at);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at)
{
    FULL(fd, at + (off64_t) total(parts, count))
    return REAL("pwritev64", Pwritev)(fd, parts, count, at);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at)
{
    FULL(fd, at + (off64_t) total(parts, count))
    return REAL("pwritev64", Pwritev)(fd, parts, count, at);
}

int posix_fallocate(int fd, off_t at, off_t count)
{
    return is_full(fd, at + count) ? ENOSPC : REAL("posix_fallocate64", Allocate)(fd, at, count);
}

int posix_fallocate64(int fd, off64_t at, off64_t count)
{
    return is_full(fd, at + count) ? ENOSPC : REAL("posix_fallocate64", Allocate)(fd, at, count);
}
