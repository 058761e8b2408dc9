// order_nodes: the nodes of a graph, inputs first. The same as in tritium/graph/graph.py, faster.
#include <cstdint>
#include <vector>

#include "array.h"

namespace tritium::python {
namespace {

// A set of objects by their addresses: open addressing, at most half full.
class Seen {
 public:
  bool has(PyObject* o) const { return slots_[place(o)] != nullptr; }

  void add(PyObject* o) {
    if (2 * ++count_ > slots_.size()) grow();
    slots_[place(o)] = o;
  }

 private:
  std::size_t place(PyObject* o) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t i = static_cast<std::size_t>((reinterpret_cast<std::uintptr_t>(o) >> 4) * 0x9E3779B97F4A7C15u >> 20) & mask;
    while (slots_[i] && slots_[i] != o) i = (i + 1) & mask;
    return i;
  }

  void grow() {
    std::vector<PyObject*> before(2 * slots_.size());
    before.swap(slots_);
    for (PyObject* o : before)
      if (o) slots_[place(o)] = o;
  }

  std::vector<PyObject*> slots_ = std::vector<PyObject*>(64);
  std::size_t count_ = 0;
};

}  // namespace

PyObject* order_nodes(PyObject* roots, PyObject* known) {
  static PyObject* const inputs_name = PyUnicode_InternFromString("inputs");
  if (!PyTuple_Check(roots) || !PyAnySet_Check(known)) {
    PyErr_SetString(PyExc_TypeError, "order_nodes needs a tuple of nodes and a set of nodes");
    return nullptr;
  }
  PyObject* order = PyList_New(0);
  const bool has_known = PySet_GET_SIZE(known) > 0;
  Seen done;
  done.add(Py_None);              // an operand that was left out needs nothing
  std::vector<PyObject*> stack;  // nodes are kept alive by the roots
  for (Py_ssize_t i = PyTuple_GET_SIZE(roots); order && i-- > 0;) stack.push_back(PyTuple_GET_ITEM(roots, i));
  while (order && !stack.empty()) {
    PyObject* node = stack.back();
    if (!done.has(node)) {
      const int leaf = has_known ? PySet_Contains(known, node) : 0;
      PyObject* inputs = leaf < 0 ? nullptr : PyObject_GetAttr(node, inputs_name);
      if (!inputs || !PyTuple_Check(inputs)) {
        if (inputs) PyErr_SetString(PyExc_TypeError, "order_nodes: the inputs of a node must be a tuple");
        Py_XDECREF(inputs);
        Py_CLEAR(order);
        break;
      }
      const std::size_t before = stack.size();
      for (Py_ssize_t i = leaf ? 0 : PyTuple_GET_SIZE(inputs); i-- > 0;)
        if (!done.has(PyTuple_GET_ITEM(inputs, i))) stack.push_back(PyTuple_GET_ITEM(inputs, i));
      Py_DECREF(inputs);
      if (stack.size() > before) continue;
      done.add(node);
      if (PyList_Append(order, node) < 0) Py_CLEAR(order);
    }
    stack.pop_back();
  }
  return order;
}

}  // namespace tritium::python
