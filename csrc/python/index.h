// Views of plain keys.
#pragma once

#include "array.h"

namespace tritium::python {

PyObject* index_plainly(PyObject* x, PyObject* key);  // nullptr without an exception: this key is for Python

}  // namespace tritium::python
