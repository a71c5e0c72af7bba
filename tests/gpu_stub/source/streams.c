/* Streams, events, captures and graphs. What a capture forbids is refused as CUDA refuses it.
 *
 * One difference: CUDA runs work on the legacy stream while a non-blocking stream is captured, so
 * that the graph silently lacks this work. The stub refuses it in the thread that captures.
 */
#define _GNU_SOURCE
#include "stub.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct {
  unsigned flags;
  int priority;
  unsigned long capture; /* number of the capture that the stream has joined */
} Stream;

typedef struct {
  unsigned long capture; /* number of the capture in which it was recorded */
  int is_recorded;
} Event;

typedef struct {
  long nodes;
} Graph;

enum { GLOBAL, THREAD_LOCAL, RELAXED };   /* modes of a capture, and of a thread */
enum { NOT_CAPTURED, ACTIVE, INVALIDATED }; /* states of a stream */

/* The capture that is under way. Only one at a time is supported; none has number 0. */
static struct {
  unsigned long number, last;
  int mode, is_broken;
  pthread_t thread;
  Stream *origin;
  Graph *graph;
} capture;
static __thread int thread_mode;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* NULL, 1 and 2 are the legacy stream and the default streams of threads. */
static int is_legacy(void *stream) { return (size_t)stream <= 2; }

int is_captured(void *stream) {
  return capture.number && !is_legacy(stream) && ((Stream *)stream)->capture == capture.number;
}

static int in_capturing_thread(void) {
  return capture.number && pthread_equal(pthread_self(), capture.thread);
}

int refuse(int error, const char *name) {
  count(REFUSED, name, 0);
  capture.is_broken = 1;
  return failed(error);
}

int refuse_unsafe(const char *name) {
  if (!capture.number || thread_mode == RELAXED || capture.mode == RELAXED) return 0;
  int concerned = in_capturing_thread() || (thread_mode == GLOBAL && capture.mode == GLOBAL);
  return concerned ? refuse(CAPTURE_UNSUPPORTED, name) : 0;
}

static int capture_work(const char *name, long bytes) {
  if (capture.is_broken) return failed(CAPTURE_INVALIDATED);
  pthread_mutex_lock(&lock);
  capture.graph->nodes++;
  pthread_mutex_unlock(&lock);
  return count(CAPTURED, name, bytes);
}

int enqueue(int kind, const char *name, void *stream, long bytes) {
  if (is_captured(stream)) return capture_work(name, bytes);
  if (is_legacy(stream) && in_capturing_thread()) return refuse(CAPTURE_IMPLICIT, name);
  return count(kind, name, bytes);
}

/* ---- streams ---- */

API int cudaStreamCreateWithPriority(void **made, unsigned flags, int priority) {
  Stream *stream = calloc(1, sizeof *stream);
  stream->flags = flags;
  stream->priority = priority;
  return *made = stream, 0;
}
API int cudaStreamCreateWithFlags(void **made, unsigned flags) {
  return cudaStreamCreateWithPriority(made, flags, 0);
}
API int cudaStreamCreate(void **made) { return cudaStreamCreateWithPriority(made, 0, 0); }
API int cudaStreamGetPriority(void *stream, int *priority) {
  return *priority = is_legacy(stream) ? 0 : ((Stream *)stream)->priority, 0;
}
API int cudaStreamGetFlags(void *stream, unsigned *flags) {
  return *flags = is_legacy(stream) ? 0 : ((Stream *)stream)->flags, 0;
}
API int cudaStreamGetDevice(void *stream, int *device) { return *device = 0; }
API int cudaStreamGetId(void *stream, unsigned long long *id) { return *id = (size_t)stream, 0; }
API int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return 0;
}

static int wait(const char *name, void *stream) {
  if (is_captured(stream)) return refuse(CAPTURE_UNSUPPORTED, name);
  int error = refuse_unsafe(name);
  return error ? error : count(SYNC, name, 0);
}
API int cudaStreamSynchronize(void *stream) { return wait("cudaStreamSynchronize", stream); }
API int cudaDeviceSynchronize(void) { return wait("cudaDeviceSynchronize", 0); }
API int cuStreamSynchronize(void *stream) { return wait("cuStreamSynchronize", stream); }
API int cuCtxSynchronize(void) { return wait("cuCtxSynchronize", 0); }
API int cudaStreamQuery(void *stream) {
  return is_captured(stream) ? refuse(CAPTURE_UNSUPPORTED, "cudaStreamQuery")
                             : refuse_unsafe("cudaStreamQuery");
}

API int cudaLaunchHostFunc(void *stream, void (*function)(void *), void *data) {
  int error = enqueue(LAUNCH, "cudaLaunchHostFunc", stream, 0);
  if (!error && !is_captured(stream)) function(data);
  return error;
}

/* ---- events ---- */

API int cudaEventCreateWithFlags(void **made, unsigned flags) {
  return *made = calloc(1, sizeof(Event)), 0;
}
API int cudaEventCreate(void **made) { return cudaEventCreateWithFlags(made, 0); }
API int cudaEventDestroy(void *event) { return free(event), 0; }
API int cudaEventRecordWithFlags(Event *event, void *stream, unsigned flags) {
  event->capture = is_captured(stream) ? capture.number : 0;
  event->is_recorded = 1;
  return 0;
}
API int cudaEventRecord(Event *event, void *stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
static int is_in_capture(const Event *event) {
  return capture.number && event->capture == capture.number;
}
API int cudaEventSynchronize(Event *event) {
  if (is_in_capture(event)) return refuse(CAPTURED_EVENT, "cudaEventSynchronize");
  return wait("cudaEventSynchronize", 0);
}
API int cudaEventQuery(const Event *event) {
  if (is_in_capture(event)) return refuse(CAPTURED_EVENT, "cudaEventQuery");
  return refuse_unsafe("cudaEventQuery");
}
API int cudaEventElapsedTime(float *milliseconds, void *a, void *b) { return *milliseconds = 1, 0; }
API int cudaEventElapsedTime_v2(float *milliseconds, void *a, void *b) {
  return *milliseconds = 1, 0;
}
/* A stream that waits for an event of the capture joins it. */
API int cudaStreamWaitEvent(void *stream, Event *event, unsigned flags) {
  if (is_in_capture(event)) {
    if (is_legacy(stream)) return refuse(CAPTURE_IMPLICIT, "cudaStreamWaitEvent");
    ((Stream *)stream)->capture = capture.number;
  } else if (is_captured(stream) && event->is_recorded) {
    return refuse(CAPTURE_ISOLATION, "cudaStreamWaitEvent");
  }
  return 0;
}

/* ---- captures ---- */

API int cudaStreamBeginCapture(Stream *stream, int mode) {
  if (is_legacy(stream) || capture.number) return refuse(CAPTURE_UNSUPPORTED, "second capture");
  capture.mode = mode;
  capture.is_broken = 0;
  capture.thread = pthread_self();
  capture.origin = stream;
  capture.graph = calloc(1, sizeof(Graph));
  stream->capture = capture.number = ++capture.last;
  return 0;
}
API int cudaStreamEndCapture(Stream *stream, Graph **graph) {
  if (!is_captured(stream) || stream != capture.origin) return failed(CAPTURE_UNMATCHED);
  capture.number = 0;
  *graph = capture.is_broken ? 0 : capture.graph;
  return capture.is_broken ? failed(CAPTURE_INVALIDATED) : 0;
}

static int status_of(void *stream) {
  return !is_captured(stream) ? NOT_CAPTURED : capture.is_broken ? INVALIDATED : ACTIVE;
}
API int cudaStreamIsCapturing(void *stream, int *status) { return *status = status_of(stream), 0; }
API int cuStreamIsCapturing(void *stream, int *status) { return *status = status_of(stream), 0; }

/* As in CUDA 12: cudaStreamGetCaptureInfo_v2. */
API int cudaStreamGetCaptureInfo_v2(void *stream, int *status, unsigned long long *id,
                                    Graph **graph, const void **dependencies, size_t *num) {
  *status = status_of(stream);
  if (id) *id = capture.number;
  if (graph) *graph = capture.graph;
  if (dependencies) *dependencies = 0;
  if (num) *num = 0;
  return 0;
}
/* CUDA 12 calls this function _v3, and has an older one without the suffix. */
API int cudaStreamGetCaptureInfo_v3(void *stream, int *status, unsigned long long *id,
                                    Graph **graph, const void **dependencies, const void **edges,
                                    size_t *num) {
  if (edges) *edges = 0;
  return cudaStreamGetCaptureInfo_v2(stream, status, id, graph, dependencies, num);
}
#if CUDA_VERSION >= 13000
API int cudaStreamGetCaptureInfo(void *stream, int *status, unsigned long long *id, Graph **graph,
                                 const void **dependencies, const void **edges, size_t *num) {
  return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, edges, num);
}
#else
API int cudaStreamGetCaptureInfo(void *stream, int *status, unsigned long long *id) {
  return cudaStreamGetCaptureInfo_v2(stream, status, id, 0, 0, 0);
}
#endif

API int cudaThreadExchangeStreamCaptureMode(int *mode) {
  int before = thread_mode;
  thread_mode = *mode;
  return *mode = before, 0;
}

/* ---- graphs: an executable graph is the graph itself; graphs are never freed ---- */

API int cudaGraphGetNodes(const Graph *graph, void **nodes, size_t *num) {
  return *num = graph->nodes, 0;
}
API int cudaGraphInstantiate(Graph **made, Graph *graph, unsigned long long flags) {
  return *made = graph, 0;
}
API int cudaGraphInstantiateWithFlags(Graph **made, Graph *graph, unsigned long long flags) {
  return *made = graph, 0;
}
API int cudaGraphLaunch(const Graph *graph, void *stream) {
  return enqueue(GRAPH_LAUNCH, "cudaGraphLaunch", stream, 0);
}
