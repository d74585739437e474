/* SIGINT at one of the places where the interpreter looks for signals: its trace function, without
 * Python in it. A trace function in Python copies the locals of each frame to and fro, keeps them
 * alive, and looks for signals itself. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    long count; /* Places that were come to. */
    long at;    /* The one to interrupt. */
    char last[512];
} Steps;

/* What is known of a code object. */
typedef struct {
    int is_ours;
    int is_finalizer;
    Py_ssize_t length;
    unsigned char looks[]; /* By instruction: whether it looks for signals. */
} Known;

static Py_ssize_t extra_index = -1;
static unsigned char looking[256];
static char package[1024];

/* `opcodes` are those that look for signals; `prefix` begins the file names of our code. */
int steps_prepare(const char *prefix, const unsigned char *opcodes, int count) {
    extra_index = _PyEval_RequestCodeExtraIndex(free);
    if (extra_index < 0 || strlen(prefix) >= sizeof(package)) return -1;
    strcpy(package, prefix);
    for (int i = 0; i < count; i++) looking[opcodes[i]] = 1;
    return 0;
}

static Known *known_of(PyCodeObject *code) {
    void *extra = NULL;
    if (_PyCode_GetExtra((PyObject *)code, extra_index, &extra) < 0) return NULL;
    if (extra != NULL) return extra;
    PyObject *bytes = PyCode_GetCode(code);
    if (bytes == NULL) return NULL;
    const unsigned char *units = (const unsigned char *)PyBytes_AS_STRING(bytes);
    Py_ssize_t length = PyBytes_GET_SIZE(bytes) / 2;
    Known *known = calloc(1, sizeof(Known) + (size_t)length);
    const char *path = PyUnicode_AsUTF8(code->co_filename);
    if (known == NULL || path == NULL) {
        free(known);
        Py_DECREF(bytes);
        return NULL;
    }
    known->is_ours = strncmp(path, package, strlen(package)) == 0;
    known->is_finalizer = PyUnicode_CompareWithASCIIString(code->co_name, "__del__") == 0;
    known->length = length;
    for (Py_ssize_t i = 0; i < length; i++) known->looks[i] = looking[units[2 * i]];
    Py_DECREF(bytes);
    if (_PyCode_SetExtra((PyObject *)code, extra_index, known) < 0) {
        free(known);
        return NULL;
    }
    return known;
}

static Known *known_of_frame(PyFrameObject *frame) {
    PyCodeObject *code = PyFrame_GetCode(frame);
    Known *known = known_of(code);
    Py_DECREF(code); /* The frame has it. */
    return known;
}

static int is_called_by_ours(PyFrameObject *frame) {
    PyFrameObject *caller = PyFrame_GetBack(frame);
    if (caller == NULL) return 0;
    Known *known = known_of_frame(caller);
    Py_DECREF(caller);
    return known == NULL ? -1 : known->is_ours;
}

static void come_to_place(Steps *steps, PyFrameObject *frame) {
    if (++steps->count != steps->at) return;
    PyCodeObject *code = PyFrame_GetCode(frame);
    const char *path = PyUnicode_AsUTF8(code->co_filename);
    const char *name = PyUnicode_AsUTF8(code->co_name);
    snprintf(steps->last, sizeof(steps->last), "%s:%d %s", path == NULL ? "" : path,
             PyFrame_GetLineNumber(frame), name == NULL ? "" : name);
    Py_DECREF(code);
    PyErr_SetInterrupt(); /* Whoever looks next meets it: nobody does in here. */
}

static int trace(PyObject *state, PyFrameObject *frame, int what, PyObject *Py_UNUSED(arg)) {
    Steps *steps = PyLong_AsVoidPtr(state);
    if (steps->count >= steps->at) return 0;
    if (what != PyTrace_CALL && what != PyTrace_RETURN && what != PyTrace_OPCODE) return 0;
    Known *known = known_of_frame(frame);
    if (known == NULL) return -1;
    /* What an exception in a finalizer comes to is the interpreter's own. */
    if (known->is_finalizer) return 0;
    if (what == PyTrace_OPCODE) {
        Py_ssize_t unit = PyFrame_GetLasti(frame) / 2;
        if (known->is_ours && unit >= 0 && unit < known->length && known->looks[unit]) {
            come_to_place(steps, frame);
        }
        return 0;
    }
    int is_near = known->is_ours ? 1 : is_called_by_ours(frame);
    if (is_near < 0) return -1;
    if (what == PyTrace_RETURN && is_near) come_to_place(steps, frame);
    if (what == PyTrace_CALL) {
        PyObject *self = (PyObject *)frame;
        if (PyObject_SetAttrString(self, "f_trace_lines", Py_False) < 0) return -1;
        if (known->is_ours && PyObject_SetAttrString(self, "f_trace_opcodes", Py_True) < 0) {
            return -1;
        }
    }
    return 0;
}

int steps_arm(Steps *steps, long at) {
    PyObject *state = PyLong_FromVoidPtr(steps);
    if (state == NULL) return -1;
    steps->count = 0;
    steps->at = at;
    steps->last[0] = 0;
    PyEval_SetTrace(trace, state);
    Py_DECREF(state);
    return 0;
}
