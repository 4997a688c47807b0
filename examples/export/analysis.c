/* A trained filter of bieqno, run by the C interface of ONNX Runtime: see analysis.h. */
#include "analysis.h"
#include <onnxruntime_c_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bieqno_filter {
    const OrtApi *api;
    OrtEnv *env;
    OrtSession *session;
    OrtMemoryInfo *memory;
};

static int failed(const OrtApi *api, OrtStatus *status) {
    if (status == NULL) return 0;
    fprintf(stderr, "bieqno: %s\n", api->GetErrorMessage(status));
    api->ReleaseStatus(status);
    return 1;
}

void bieqno_close(bieqno_filter *filter) {
    if (filter == NULL) return;
    if (filter->session) filter->api->ReleaseSession(filter->session);
    if (filter->memory) filter->api->ReleaseMemoryInfo(filter->memory);
    if (filter->env) filter->api->ReleaseEnv(filter->env);
    free(filter);
}

bieqno_filter *bieqno_open(const char *path) {
    bieqno_filter *filter = calloc(1, sizeof *filter);
    if (filter == NULL) return NULL;
    const OrtApi *api = filter->api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    OrtSessionOptions *options = NULL;
    int wrong = api == NULL;
    if (wrong) fprintf(stderr, "bieqno: this ONNX Runtime is older than its header\n");
    wrong = wrong || failed(api, api->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "bieqno", &filter->env));
    wrong = wrong || failed(api, api->CreateSessionOptions(&options));
    wrong = wrong || failed(api, api->CreateSession(filter->env, path, options, &filter->session));
    wrong = wrong || failed(api, api->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &filter->memory));
    if (options) api->ReleaseSessionOptions(options);
    if (!wrong) return filter;
    bieqno_close(filter);
    return NULL;
}

int bieqno_analyse(bieqno_filter *filter, int64_t N, int64_t n, int64_t m, float *ensemble, const float *observed,
                   const float *noise) {
    const OrtApi *api = filter->api;
    const char *names[] = {"ensemble", "observed", "noise"}, *result[] = {"posterior"};
    const float *data[] = {ensemble, observed, noise};
    const int64_t shapes[][2] = {{N, n}, {m, 0}, {N, n}};
    const size_t ranks[] = {2, 1, 2}, counts[] = {(size_t)(N * n), (size_t)m, (size_t)(N * n)};
    OrtValue *inputs[3] = {NULL, NULL, NULL}, *posterior = NULL;
    float *values = NULL;
    int wrong = 0;
    for (int k = 0; k < 3 && !wrong; k++)
        wrong = failed(api, api->CreateTensorWithDataAsOrtValue(filter->memory, (void *)data[k], counts[k] * sizeof(float),
                                                                shapes[k], ranks[k], ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
                                                                &inputs[k]));
    wrong = wrong || failed(api, api->Run(filter->session, NULL, names, (const OrtValue *const *)inputs, 3, result, 1, &posterior));
    wrong = wrong || failed(api, api->GetTensorMutableData(posterior, (void **)&values));
    if (!wrong) memcpy(ensemble, values, counts[0] * sizeof(float));
    if (posterior) api->ReleaseValue(posterior);
    for (int k = 0; k < 3; k++)
        if (inputs[k]) api->ReleaseValue(inputs[k]);
    return wrong;
}
