// Brings the library's events to Python.
//
// Library threads must not wait for the GIL: they move the group's data, and may still run while Python ends. So a handler only
// adds the event to a queue. A Python thread (unisono/_events.py) takes events from the queue and hands them on.
#include <condition_variable>
#include <deque>
#include <mutex>

#include "core.h"

namespace unisono_python {

namespace {

constexpr size_t waiting_max = 1024;  // events that come on top are dropped

// Events carry the number of the receiver to which _events.py hands them. An entry without an event says that no more events
// of this receiver will come.
struct Entry {
  uint64_t receiver;
  std::optional<Event> event;
};

struct Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Entry> entries;
  bool closed = false;

  void add(uint64_t receiver, std::optional<Event> event) {
    const std::lock_guard lock(mutex);
    if (closed || (event && entries.size() >= waiting_max)) return;
    entries.push_back({receiver, std::move(event)});
    changed.notify_one();
  }
};

// It is never destroyed, because library threads may add events until the process ends.
Queue*& current_queue() {
  static auto* queue = new Queue;
  return queue;
}
Queue& queue() { return *current_queue(); }

struct Receiver {
  explicit Receiver(uint64_t its_number) : number(its_number) {}
  ~Receiver() { queue().add(number, std::nullopt); }
  Receiver(const Receiver&) = delete;  // the end of a copy would end the receiver
  const uint64_t number;
};

EventHandler handler_of(uint64_t number) {
  const auto receiver = std::make_shared<Receiver>(number);
  return [receiver](const Event& event) { queue().add(receiver->number, event); };
}

// Blocks until there are events. Returns None when the queue has been closed.
py::object next_events() {
  std::deque<Entry> taken;
  {
    const py::gil_scoped_release released;
    std::unique_lock lock(queue().mutex);
    queue().changed.wait(lock, [] { return queue().closed || !queue().entries.empty(); });
    taken.swap(queue().entries);
  }
  if (taken.empty()) return py::none();
  py::list list;
  for (auto& entry : taken) list.append(py::make_tuple(entry.receiver, py::cast(entry.event)));
  return list;
}

// Call it in a forked child. The child leaves its parent's queue alone, because another thread may have held the mutex at the
// fork, and the thread that took events does not exist in the child.
void renew_events() { current_queue() = new Queue; }

void close_events() {
  const std::lock_guard lock(queue().mutex);
  queue().closed = true;
  queue().changed.notify_all();
}

}  // namespace

EventHandler event_handler(py::handle function) {
  const auto number = py::module_::import("unisono._events").attr("receiver")(function);
  return number.is_none() ? EventHandler() : handler_of(number.cast<uint64_t>());
}

void end_events() {
  const auto module = py::module_::import("sys").attr("modules").attr("get")("unisono._events");
  if (!module.is_none()) module.attr("end")();
}

void add_events(py::module_& m) {
  py::class_<Event> event(m, "Event", "What the library reports that no call returns (docs/guides/troubleshooting.md).");
  event.def_property_readonly("kind", [](const Event& self) { return facts(self.kind).name; });
  event.def_property_readonly("level",
                              [](const Event& self) { return self.level() == EventLevel::warning ? "warning" : "info"; });
  event.def_readonly("text", &Event::text);
  event.def_readonly("source", &Event::source);
  event.def_property_readonly(
      "rank", [](const Event& self) { return self.rank < 0 ? std::optional<int32_t>() : self.rank; },
      "The rank that the event is about, or None.");
  event.def_property_readonly(
      "time",
      [](const Event& self) {
        return std::chrono::duration_cast<std::chrono::duration<double>>(self.time.time_since_epoch()).count();
      },
      "Seconds since 1970.");
  event.def("__str__", &Event::to_string);
  event.def("__repr__", [](const Event& self) { return "<unisono.Event: " + self.to_string() + ">"; });
  m.def("_next_events", next_events);
  m.def("_close_events", close_events);
  m.def("_renew_events", renew_events);
  m.def("_event_handler_capsule", [](py::handle function) {
    return py::capsule(new EventHandler(event_handler(function)), "unisono.EventHandler", [](PyObject* capsule) {
      delete static_cast<EventHandler*>(PyCapsule_GetPointer(capsule, "unisono.EventHandler"));
    });
  });
}

}  // namespace unisono_python
