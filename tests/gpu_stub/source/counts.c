/* Counts of calls by kind and name, and the errors that calls return. */
#include "stub.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  int kind;
  const char *name;
  long count, bytes;
} Row;

enum { SLOTS = 1 << 14 };
static Row rows[SLOTS]; /* a hash table; a free slot has no name */
static int used[SLOTS], num_used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static Row *row_of(int kind, const char *name) {
  unsigned long hash = 1469598103934665603UL + kind;
  for (const char *c = name; *c; c++) hash = (hash ^ (unsigned char)*c) * 1099511628211UL;
  unsigned slot = hash % SLOTS;
  while (rows[slot].name && !(rows[slot].kind == kind && !strcmp(rows[slot].name, name)))
    slot = (slot + 1) % SLOTS;
  if (!rows[slot].name) {
    if (num_used == SLOTS / 2) abort();
    rows[slot] = (Row){kind, strdup(name), 0, 0};
    used[num_used++] = slot;
  }
  return &rows[slot];
}

/* ---- a failure on order: call number `after` of a kind returns `code` ---- */

static struct {
  int kind, code;
  long after;
} order = {.kind = -1};
static int broken; /* an error of the device that every later call returns too */
static __thread int last_error;

/* Errors after which a CUDA context is lost. */
static int is_sticky(int code) { return code == 214 || (code >= 700 && code < 720 && code != 701); }

/* STUB_GPU_FAIL=KIND:CODE:AFTER, with the number of the kind; stub.py writes it. */
__attribute__((constructor)) static void read_order(void) {
  const char *text = getenv("STUB_GPU_FAIL");
  if (text) sscanf(text, "%d:%d:%ld", &order.kind, &order.code, &order.after);
}

static int ordered_error(int kind) {
  if (broken) return broken;
  if (kind != order.kind || --order.after > 0) return 0;
  order.kind = -1;
  return is_sticky(order.code) ? (broken = order.code) : order.code;
}

int failed(int error) { return last_error = error; }

static int take_error(int clear) {
  int error = broken ? broken : last_error;
  if (clear) last_error = 0;
  return error;
}
API int cudaGetLastError(void) { return take_error(1); }
API int cudaPeekAtLastError(void) { return take_error(0); }

static const struct {
  int code;
  const char *name, *text;
} ERRORS[] = {
    {SUCCESS, "cudaSuccess", "no error"},
    {INVALID_VALUE, "cudaErrorInvalidValue", "invalid argument"},
    {OUT_OF_MEMORY, "cudaErrorMemoryAllocation", "out of memory"},
    {46, "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"},
    {214, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {NOT_READY, "cudaErrorNotReady", "device not ready"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {710, "cudaErrorAssert", "device-side assert triggered"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {CAPTURE_UNSUPPORTED, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {CAPTURE_INVALIDATED, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {CAPTURE_UNMATCHED, "cudaErrorStreamCaptureUnmatched",
     "the capture was not initiated in this stream"},
    {CAPTURE_ISOLATION, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {CAPTURE_IMPLICIT, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {CAPTURED_EVENT, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
};

static int error_row(int code) {
  for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
    if (ERRORS[i].code == code) return i;
  return -1;
}
API const char *cudaGetErrorName(int code) {
  return error_row(code) < 0 ? "cudaErrorUnknown" : ERRORS[error_row(code)].name;
}
API const char *cudaGetErrorString(int code) {
  return error_row(code) < 0 ? "unknown error" : ERRORS[error_row(code)].text;
}
API int cuGetErrorName(int code, const char **name) { return *name = cudaGetErrorName(code), 0; }
API int cuGetErrorString(int code, const char **text) {
  return *text = cudaGetErrorString(code), 0;
}

/* ---- counting, and what counting.py calls ---- */

static void (*hook)(int, const char *, long);
static unsigned hooked; /* a bit for each kind that the hook wants */

int count(int kind, const char *name, long bytes) {
  pthread_mutex_lock(&lock);
  Row *row = row_of(kind, name);
  row->count++;
  row->bytes += bytes;
  int error = ordered_error(kind);
  pthread_mutex_unlock(&lock);
  void (*call)(int, const char *, long) = hook;
  if (call && hooked >> kind & 1) call(kind, name, bytes);
  return error ? failed(error) : 0;
}

API void stub_hook(void (*function)(int, const char *, long), unsigned kinds) {
  hooked = kinds;
  hook = function;
}
API int stub_rows(void) { return num_used; }
API const char *stub_row(int i, int *kind, long *count, long *bytes) {
  Row *row = &rows[used[i]];
  *kind = row->kind;
  *count = row->count;
  *bytes = row->bytes;
  return row->name;
}
