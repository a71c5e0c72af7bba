/* What the source files of the stub GPU share.
 *
 * The stub answers for the CUDA runtime, the CUDA driver, cuBLAS and cuDNN. Its calls succeed and
 * compute nothing. It is loaded by LD_PRELOAD, so the program and torch run their real CUDA code.
 * The few types and numbers of CUDA that it needs are declared here, so it needs no CUDA header.
 */
#ifndef STUB_H
#define STUB_H

#include <stddef.h>

#ifndef CUDA_VERSION
#define CUDA_VERSION 13000 /* 1000 * major + 10 * minor, of torch's build */
#endif

#define API __attribute__((visibility("default")))

/* Error numbers, equal in the runtime (cudaError...) and in the driver (CUDA_ERROR_...). */
enum {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_READY = 600,
  CAPTURE_UNSUPPORTED = 900, /* not allowed while a stream is captured */
  CAPTURE_INVALIDATED = 901, /* an earlier call broke the capture */
  CAPTURE_UNMATCHED = 903,   /* another stream began the capture */
  CAPTURE_ISOLATION = 905,   /* a dependency on work outside the capture */
  CAPTURE_IMPLICIT = 906,    /* a dependency on the legacy stream */
  CAPTURED_EVENT = 907,      /* an event that was recorded in a capture */
};
enum { CUBLAS_FAILED = 13, CUDNN_FAILED = 5000 };

/* ---- counts.c: what was asked, by kind and name; errors ---- */

/* Kinds of counted calls. counting.py has the same list. */
enum {
  LAUNCH,       /* a kernel, by its mangled name */
  CAPTURED,     /* a kernel, copy or memset that became a part of a graph and did not run */
  GRAPH_LAUNCH, /* the replay of a graph */
  H2D,
  D2H,
  D2D,
  SYNC,     /* a wait for the device */
  MEMSET,
  MALLOC,   /* device or pinned memory from the driver; torch's allocator reuses it */
  UNPINNED, /* an asynchronous copy from pageable host memory; it is counted as H2D too */
  REFUSED,  /* a call that CUDA refuses during a capture */
  UNKNOWN,  /* a call that only answers 0; if something fails, look here first */
  KINDS,
};

/* Count a call and return 0, or the error with which it shall fail. */
int count(int kind, const char *name, long bytes);

/* Make `error` the last error of this thread, and return it. */
int failed(int error);

/* ---- streams.c: streams, events and captures ---- */

/* Put work on a stream: count it, capture it or refuse it. Return 0 or an error. */
int enqueue(int kind, const char *name, void *stream, long bytes);

/* Return whether a stream takes part in a capture. */
int is_captured(void *stream);

/* Refuse a call that breaks the capture; return the error. */
int refuse(int error, const char *name);

/* Return 0, or an error if a capture forbids calls that may wait for the device. */
int refuse_unsafe(const char *name);

/* ---- memory.c ---- */

size_t total_memory(void);

/* ---- kernels.c ---- */

/* A function that does nothing and returns 0. */
int nothing(void);

/* ---- for rest.c, which stub.py writes: every other symbol that torch needs ---- */

#define ANSWER(name) API int name(void) { return count(UNKNOWN, #name, 0); }
/* A computing call of a library; its first argument is the handle, which holds the stream. */
#define COMPUTE(name, error) \
  API int name(void **handle) { return enqueue(LAUNCH, #name, *handle, 0) ? (error) : 0; }
#define CREATE(name) API int name(void **made) { return !(*made = calloc(1, 1024)); }

#endif
