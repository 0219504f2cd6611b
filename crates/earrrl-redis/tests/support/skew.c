// Preloaded into a server of the tests': a wall clock that is off by the microseconds in a file.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *skew;

__attribute__((constructor)) static void map_skew(void) {
  const char *path = getenv("EARRRL_TEST_SKEW");
  int file = path ? open(path, O_RDONLY) : -1;
  void *map = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *skew, PROT_READ, MAP_SHARED, file, 0);
  if (map == MAP_FAILED) abort();
  skew = map;
}

int clock_gettime(clockid_t id, struct timespec *out) {
  int failed = syscall(SYS_clock_gettime, id, out);
  if (!failed && skew && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
    int64_t nanos = out->tv_sec * 1000000000LL + out->tv_nsec + *skew * 1000;
    out->tv_sec = nanos / 1000000000;
    out->tv_nsec = nanos % 1000000000;
  }
  return failed;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
  (void)zone;
  struct timespec now;
  int failed = clock_gettime(CLOCK_REALTIME, &now);
  out->tv_sec = now.tv_sec;
  out->tv_usec = now.tv_nsec / 1000;
  return failed;
}

time_t time(time_t *out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
