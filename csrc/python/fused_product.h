// FusedProduct: a fused product as a Python object.
#pragma once

#include "../fused_product.h"
#include "array.h"

namespace tritium::python {

PyTypeObject* make_fused_product_type();
const FusedProduct* product_of_object(PyObject* o);  // nullptr: it is none

}  // namespace tritium::python
