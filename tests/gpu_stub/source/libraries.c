/* cuBLAS and cuDNN. A handle is a block whose first word is its stream, for COMPUTE. */
#include "stub.h"

#include <stdlib.h>
#include <string.h>

/* ---- cuBLAS; stub.py adds its products ---- */

CREATE(cublasCreate_v2)
API int cublasSetStream_v2(void **handle, void *stream) { return *handle = stream, 0; }
API int cublasGetStream_v2(void **handle, void **stream) { return *stream = *handle, 0; }
API int cublasGetPointerMode_v2(void *handle, int *mode) { return *mode = 0; }
API int cublasGetMathMode(void *handle, int *mode) { return *mode = 0; }
API int cublasGetVersion_v2(void *handle, int *version) {
  return *version = CUDA_VERSION / 1000 * 10000, 0;
}

CREATE(cublasLtCreate)
CREATE(cublasLtMatmulDescCreate)
CREATE(cublasLtMatmulPreferenceCreate)
CREATE(cublasLtMatrixLayoutCreate)
API size_t cublasLtGetVersion(void) { return CUDA_VERSION / 1000 * 10000; }

typedef struct {
  unsigned long algorithm[8];
  size_t workspace;
  int status;
  float waves;
  int reserved[4];
} Heuristic;
API int cublasLtMatmulAlgoGetHeuristic(void *handle, void *product, void *a, void *b, void *c,
                                       void *d, void *preference, int wanted, Heuristic *results,
                                       int *num) {
  memset(results, 0, sizeof *results);
  return *num = 1, 0;
}
API int cublasLtMatmul(void *handle, void *product, void *alpha, void *a, void *a_layout, void *b,
                       void *b_layout, void *beta, void *c, void *c_layout, void *d,
                       void *d_layout, void *algorithm, void *workspace, size_t size,
                       void *stream) {
  return enqueue(LAUNCH, "cublasLtMatmul", stream, 0) ? CUBLAS_FAILED : 0;
}

/* ---- cuDNN: the graph API, with one engine for every graph ---- */

CREATE(cudnnCreate)
API int cudnnDestroy(void *handle) { return free(handle), 0; }
API int cudnnSetStream(void **handle, void *stream) { return *handle = stream, 0; }
API int cudnnGetStream(void **handle, void **stream) { return *stream = *handle, 0; }

API int cudnnBackendCreateDescriptor(int type, void **made) {
  return !(*made = calloc(1, 64));
}
API int cudnnBackendDestroyDescriptor(void *descriptor) { return free(descriptor), 0; }
API int cudnnBackendInitialize(void *descriptor) { return 0; }
API int cudnnBackendFinalize(void *descriptor) { return 0; }
API int cudnnBackendSetAttribute(void *descriptor, int name, int type, long num, void *values) {
  return 0;
}

enum { TYPE_INT64 = 3, TYPE_INT32 = 23 };
/* Attributes with one value; all others have none. Numbers among the values are 0. */
static int has_value(int name) {
  switch (name) {
    case 202:  /* results of the heuristics */
    case 300:  /* engine of a configuration */
    case 304:  /* shared memory of an engine */
    case 402:  /* workspace of a plan */
    case 1301: /* number of an engine */
      return 1;
    default: return 0;
  }
}
API int cudnnBackendGetAttribute(void *descriptor, int name, int type, long wanted, long *num,
                                 void *values) {
  if (num) *num = has_value(name);
  if (values && wanted > 0 && type == TYPE_INT64) memset(values, 0, 8);
  if (values && wanted > 0 && type == TYPE_INT32) memset(values, 0, 4);
  return 0;
}
API int cudnnBackendExecute(void **handle, void *plan, void *variants) {
  return enqueue(LAUNCH, "cudnnBackendExecute", *handle, 0) ? CUDNN_FAILED : 0;
}

/* ---- cuDNN: batch norm of the older API needs no workspace ---- */

API int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    void *handle, int mode, int operations, void *x, void *z, void *y, void *scale,
    void *activation, size_t *size) {
  return *size = 0, 0;
}
API int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *handle, int mode,
                                                             int operations, void *activation,
                                                             void *x, size_t *size) {
  return *size = 0, 0;
}
API int cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    void *handle, int mode, int operations, void *x, void *y, void *dy, void *dz, void *dx,
    void *scale, void *activation, size_t *size) {
  return *size = 0, 0;
}
