/* The part of ONNX Runtime's C interface that examples/export uses, for machines that have its library (every Python wheel
   does) and not its header. The interface is a table of functions whose order never changes; unused places are skipped. */
#include <stddef.h>
#include <stdint.h>
#define ORT_API_VERSION 10
typedef struct OrtStatus OrtStatus;
typedef struct OrtEnv OrtEnv;
typedef struct OrtSession OrtSession;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtRunOptions OrtRunOptions;
typedef struct OrtValue OrtValue;
enum { ORT_LOGGING_LEVEL_ERROR = 3, OrtArenaAllocator = 1, OrtMemTypeDefault = 0, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1 };

typedef struct OrtApi {
    void *to2[2];
    const char *(*GetErrorMessage)(const OrtStatus *);
    OrtStatus *(*CreateEnv)(int, const char *, OrtEnv **);
    void *to7[3];
    OrtStatus *(*CreateSession)(const OrtEnv *, const char *, const OrtSessionOptions *, OrtSession **);
    void *to9[1];
    OrtStatus *(*Run)(OrtSession *, const OrtRunOptions *, const char *const *, const OrtValue *const *, size_t,
                      const char *const *, size_t, OrtValue **);
    OrtStatus *(*CreateSessionOptions)(OrtSessionOptions **);
    void *to49[38];
    OrtStatus *(*CreateTensorWithDataAsOrtValue)(const OrtMemoryInfo *, void *, size_t, const int64_t *, size_t, int, OrtValue **);
    void *to51[1];
    OrtStatus *(*GetTensorMutableData)(OrtValue *, void **);
    void *to69[17];
    OrtStatus *(*CreateCpuMemoryInfo)(int, int, OrtMemoryInfo **);
    void *to92[22];
    void (*ReleaseEnv)(OrtEnv *);
    void (*ReleaseStatus)(OrtStatus *);
    void (*ReleaseMemoryInfo)(OrtMemoryInfo *);
    void (*ReleaseSession)(OrtSession *);
    void (*ReleaseValue)(OrtValue *);
    void *to100[3];
    void (*ReleaseSessionOptions)(OrtSessionOptions *);
} OrtApi;

typedef struct {
    const OrtApi *(*GetApi)(uint32_t);
    const char *(*GetVersionString)(void);
} OrtApiBase;
const OrtApiBase *OrtGetApiBase(void);
