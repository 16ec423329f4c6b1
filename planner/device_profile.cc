#include "planner/device_profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "base/cpu.h"
#include "io/json_fields.h"
#include "planner/efficiency.h"

namespace weft {
namespace {

constexpr double kMaxFigure = 1e21;
constexpr double kMaxBytes = 1e15;  // of memory
constexpr double kLeast = 1e-12;    // of what is divided by
constexpr int64_t kMaxCount = int64_t{1} << 40;

// Reads the parts of a profile. Every object is closed: a key that nobody asks for is an error.
class ProfileReader {
 public:
  ProfileReader(std::string where, DeviceProfile& profile) : where_(std::move(where)), profile_(profile) {}

  Status read(const Json& json) {
    JsonFields fields(json, where_);
    if (fields.integer("schema", 1, 1) != 1) return fields.status();
    profile_.name = fields.string("name");
    profile_.vendor = fields.string("vendor");
    profile_.description = fields.string("description");
    if (fields.has("notes")) profile_.notes = fields.strings("notes");
    section(fields, "memory", [&](JsonFields& memory, const Json& object) {
      profile_.nominal_bytes = figure(memory, object, "memory.", "nominal_bytes", kLeast, kMaxBytes);
      profile_.visible_bytes = figure(memory, object, "memory.", "visible_bytes", kLeast, kMaxBytes);
      profile_.memory_bytes_per_s = figure(memory, object, "memory.", "bytes_per_s", kLeast);
      const auto& [whole, part] = std::pair(profile_.nominal_bytes, profile_.visible_bytes);
      if (whole && part && part->value > whole->value) {
        fail("memory.visible_bytes",
             fmt::format("{:.0f} is more than the {:.0f} of nominal_bytes", part->value, whole->value));
      }
    });
    section(fields, "cache", [&](JsonFields& cache, const Json& object) {
      profile_.cache_bytes = figure(cache, object, "cache.", "bytes", kLeast, kMaxBytes);
      profile_.cache_bytes_per_s = figure(cache, object, "cache.", "bytes_per_s", kLeast);
    });
    peaks(fields, "matrix_flops_per_s", profile_.matrix_flops_per_s);
    peaks(fields, "vector_flops_per_s", profile_.vector_flops_per_s);
    section(fields, "launch", [&](JsonFields& launch, const Json&) {
      this->launch(launch, "eager", profile_.launch_eager);
      this->launch(launch, "graph", profile_.launch_graph);
    });
    items(fields, json, "efficiency", [&](const Json& item, const std::string& path) { efficiency(item, path); });
    items(fields, json, "links", [&](const Json& item, const std::string& path) { link(item, path); });
    section(fields, "cpu", [&](JsonFields& cpu, const Json& object) {
      profile_.cores = static_cast<int>(cpu.integer("cores", 1, 1 << 16));
      if (cpu.has("isa")) profile_.isa = cpu.string("isa");
      if (cpu.status().ok() && !profile_.isa.empty() && !parse_isa(profile_.isa))
        cpu.fail("isa", fmt::format(": '{}' is no instruction-set level", profile_.isa));
      items(cpu, object, "shared_bandwidth", [&](const Json& item, const std::string& path) { shared(item, path); });
    });
    absorb(finish(fields));
    if (status_.ok()) check_links();
    return status_;
  }

 private:
  void absorb(const Status& status) {
    if (status_.ok() && !status.ok()) status_ = status;
  }
  void fail(const std::string& path, std::string_view what) {
    absorb(invalid_argument(fmt::format("{}: {}: {}", where_, path, what)));
  }

  // Errors of the fields, then the keys that nobody asked for.
  Status finish(JsonFields& fields) {
    std::vector<std::string> unknown;
    WEFT_RETURN_IF_ERROR(fields.finish(UnknownKeys::kWarn, &unknown));
    return unknown.empty() ? Status() : invalid_argument(unknown.front());
  }

  // An optional object of the profile.
  template <class Read>
  void section(JsonFields& fields, const char* key, Read read) {
    if (!fields.has(key)) {
      fields.informational({key});
      return;
    }
    const Json* object = fields.object(key);
    if (object == nullptr) return;
    JsonFields inner(*object, where_, fmt::format("{}.", key));
    read(inner, *object);
    absorb(finish(inner));
  }

  // An optional list of objects.
  template <class Read>
  void items(JsonFields& fields, const Json& object, const char* key, Read read) {
    fields.informational({key});
    if (!fields.has(key)) return;
    const Json& list = object[key];
    if (!list.is_array()) return fail(key, fmt::format("expected a list, found {}", json_kind(list)));
    for (size_t i = 0; i < list.size() && status_.ok(); ++i) read(list[i], fmt::format("{}[{}]", key, i));
  }

  // {"value": ..., "source": "...", "verified": true}; null and absent: there is no such figure.
  std::optional<Figure> figure(JsonFields& fields, const Json& object, const std::string& prefix, std::string_view key,
                               double min = 0, double max = kMaxFigure) {
    fields.informational({key});
    if (!fields.has(key)) return std::nullopt;
    return figure_of(object[std::string(key)], prefix + std::string(key), min, max);
  }

  Figure figure_of(const Json& json, const std::string& path, double min = 0, double max = kMaxFigure) {
    JsonFields fields(json, where_, path + ".");
    Figure figure;
    figure.value = fields.number("value", min, max);
    provenance(fields, json, path, figure);
    absorb(finish(fields));
    return figure;
  }

  void provenance(JsonFields& fields, const Json& json, const std::string& path, Figure& figure) {
    figure.source = fields.string("source");
    if (fields.status().ok() && figure.source.empty()) fields.fail("source", " is empty");
    figure.verified = boolean(fields, json, "verified");
    if (figure.verified) return;
    figure.place = profile_.unverified.size();
    profile_.unverified.push_back(path);
  }

  bool boolean(JsonFields& fields, const Json& json, std::string_view key) {
    fields.informational({key});
    if (!fields.has(key)) {
      fields.fail(key, " is missing");
      return false;
    }
    const Json& value = json[std::string(key)];
    if (!value.is_boolean()) fields.fail(key, fmt::format(": expected true or false, found {}", json_kind(value)));
    return value.is_boolean() && value.get<bool>();
  }

  void peaks(JsonFields& fields, const char* key, std::map<DType, Figure>& peaks) {
    if (!fields.has(key)) {
      fields.informational({key});
      return;
    }
    const Json* object = fields.object(key);
    if (object == nullptr) return;
    for (const auto& item : object->items()) {
      const std::string path = fmt::format("{}.{}", key, item.key());
      const std::optional<DType> dtype = parse_dtype(item.key());
      if (!dtype) return fail(path, "is no dtype; F32, F16, BF16, F8_E4M3, F4_E2M1 and I8 are usual");
      if (item.value().is_null()) continue;
      peaks[*dtype] = figure_of(item.value(), path);
      if (status_.ok() && peaks[*dtype].value <= 0)
        return fail(path, "must be above 0; leave out what the device cannot do");
    }
  }

  void launch(JsonFields& fields, const char* key, LaunchCosts& costs) {
    const Json* object = fields.object(key);
    if (object == nullptr) return;
    const std::string path = fmt::format("launch.{}.", key);
    JsonFields inner(*object, where_, path);
    for (const auto& [name, figure] : {std::pair<const char*, Figure*>{"matrix_s", &costs.matrix_s},
                                       {"vector_s", &costs.vector_s},
                                       {"collective_s", &costs.collective_s}}) {
      if (const Json* value = inner.object(name); value != nullptr) *figure = figure_of(*value, path + name);
    }
    absorb(finish(inner));
  }

  template <class E>
  E word(JsonFields& fields, std::string_view key, int count, std::string_view (*name_of)(E)) {
    const std::string text = fields.string(key);
    std::vector<std::string_view> all;
    for (int i = 0; i < count; ++i) {
      all.push_back(name_of(static_cast<E>(i)));
      if (all.back() == text) return static_cast<E>(i);
    }
    if (fields.status().ok()) fields.fail(key, fmt::format(": '{}' is unknown; known: {}", text, fmt::join(all, ", ")));
    return E{};
  }

  void link(const Json& json, const std::string& path) {
    JsonFields fields(json, where_, path + ".");
    Link link;
    link.level = fields.string("level");
    link.kind = word<LinkKind>(fields, "kind", 4, link_kind_name);
    link.peers = fields.integer("peers", 0, kMaxCount);
    const auto required = [&](std::string_view key) {
      const std::optional<Figure> found = figure(fields, json, path + ".", key);
      if (!found) fields.fail(key, " is missing");
      return found.value_or(Figure{});
    };
    if (!json.is_object()) return absorb(fields.status());
    link.bytes_per_s = required("bytes_per_s");
    link.latency_s = required("latency_s");
    if (status_.ok() && fields.status().ok() && link.bytes_per_s.value <= 0)
      fields.fail("bytes_per_s", " must be above 0");
    link.full_duplex = boolean(fields, json, "full_duplex");
    link.efficiency = fields.number_or("efficiency", 1, 1e-3, 1);
    if (fields.has("algorithms")) {
      for (const std::string& text : fields.strings("algorithms")) {
        int i = 0;
        while (i < kNumCollectiveAlgorithms && collective_algorithm_name(static_cast<CollectiveAlgorithm>(i)) != text)
          ++i;
        if (i == kNumCollectiveAlgorithms) return fail(path + ".algorithms", fmt::format("'{}' is unknown", text));
        link.algorithms.push_back(static_cast<CollectiveAlgorithm>(i));
      }
    }
    absorb(finish(fields));
    profile_.links.push_back(std::move(link));
  }

  void efficiency(const Json& json, const std::string& path) {
    JsonFields fields(json, where_, path + ".");
    EfficiencyTable table;
    table.op = fields.string("op");
    if (fields.status().ok() && !can_have_table(table.op))
      fields.fail("op", fmt::format(": '{}' is no op of the graph, nor matrix, vector or memory", table.op));
    for (const auto& [key, dtype] : {std::pair("weight", &table.weight), std::pair("activation", &table.activation)}) {
      if (!fields.has(key)) continue;
      *dtype = fields.string(key);
      if (fields.status().ok() && !dtype->empty() && !parse_dtype(*dtype))
        fields.fail(key, fmt::format(": '{}' is no dtype", *dtype));
    }
    table.ranks = static_cast<int>(fields.integer_or("ranks", 0, 0, 1 << 16));
    table.threads = static_cast<int>(fields.integer_or("threads", 0, 0, 1 << 16));
    if (fields.has("cached")) table.cached = boolean(fields, json, "cached");
    if (fields.has("measured")) table.measured = boolean(fields, json, "measured");
    if (!json.is_object()) return absorb(fields.status());
    provenance(fields, json, path, table.provenance);
    size_t points = 1;
    items(fields, json, "axes", [&](const Json& item, const std::string& at) {
      JsonFields axis(item, where_, fmt::format("{}.{}.", path, at));
      table.axes.push_back({axis.string("name"), numbers(axis, item, "values", 0, kMaxFigure)});
      const std::vector<double>& values = table.axes.back().values;
      if (axis.status().ok() &&
          (values.empty() || values.front() <= 0 ||
           std::adjacent_find(values.begin(), values.end(), std::greater_equal<>()) != values.end())) {
        axis.fail("values", " must be above 0 and ascend");
      }
      const std::string& name = table.axes.back().name;
      if (axis.status().ok() && std::find(kTableAxes.begin(), kTableAxes.end(), name) == kTableAxes.end()) {
        axis.fail("name", fmt::format(": '{}' is unknown; known: {}", name, fmt::join(kTableAxes, ", ")));
      }
      points *= values.size();
      absorb(finish(axis));
    });
    table.values = numbers(fields, json, "values", 1e-9, 1e3);
    if (fields.status().ok() && table.values.size() != points) {
      fields.fail("values", fmt::format(" has {} entries, the axes have {} points", table.values.size(), points));
    }
    absorb(finish(fields));
    profile_.efficiency.push_back(std::move(table));
  }

  std::vector<double> numbers(JsonFields& fields, const Json& json, std::string_view key, double min, double max) {
    fields.informational({key});
    std::vector<double> result;
    const auto it = json.is_object() ? json.find(std::string(key)) : json.end();
    if (!json.is_object() || it == json.end() || !it->is_array()) {
      fields.fail(key, " must be a list of numbers");
      return result;
    }
    for (const Json& value : *it) {
      if (!value.is_number() || !(value.get<double>() >= min && value.get<double>() <= max)) {
        fields.fail(key, fmt::format(": every entry must be a number in {} .. {}", min, max));
        return result;
      }
      result.push_back(value.get<double>());
    }
    return result;
  }

  void shared(const Json& json, const std::string& path) {
    JsonFields fields(json, where_, "cpu." + path + ".");
    SharedBandwidth point;
    point.ranks = static_cast<int>(fields.integer("ranks", 1, 1 << 16));
    point.threads = static_cast<int>(fields.integer("threads", 1, 1 << 16));
    point.bytes_per_s = fields.number("bytes_per_s", 1, kMaxFigure);
    absorb(finish(fields));
    profile_.shared_bandwidth.push_back(point);
  }

  // Tiers grow, and only the last may be without end.
  void check_links() {
    for (size_t i = 0; i < profile_.links.size(); ++i) {
      const Link& link = profile_.links[i];
      const std::string path = fmt::format("links[{}]", i);
      if (link.kind == LinkKind::kHostMemory) {
        if (i != 0) return fail(path, "host_memory joins the ranks of one device: it must be the first link");
        if (!profile_.is_cpu())
          return fail(path, "host_memory is for CPUs (a 'cpu' section), where ranks share a device");
        continue;
      }
      if (link.peers == 0 && i + 1 < profile_.links.size())
        return fail(path, "peers 0 (any number) is for the last link");
      const int64_t inner = i == 0 ? 1 : profile_.links[i - 1].peers;
      if (link.peers != 0 && i > 0 && profile_.links[i - 1].kind != LinkKind::kHostMemory &&
          (link.peers <= inner || link.peers % inner != 0)) {
        return fail(path, fmt::format("{} peers are no multiple of the {} of the link before", link.peers, inner));
      }
      if (link.peers == 1) return fail(path, "a link needs at least 2 peers");
    }
  }

  std::string where_;
  DeviceProfile& profile_;
  Status status_;
};

// What times cannot be told without.
std::vector<std::string> missing_figures(const DeviceProfile& profile) {
  std::vector<std::string> missing;
  if (!profile.visible_bytes) missing.emplace_back("memory.visible_bytes");
  if (!profile.memory_bytes_per_s) missing.emplace_back("memory.bytes_per_s");
  if (profile.matrix_flops_per_s.empty()) missing.emplace_back("matrix_flops_per_s");
  if (profile.vector_flops_per_s.empty()) missing.emplace_back("vector_flops_per_s");
  if (profile.launch_graph.matrix_s.source.empty()) missing.emplace_back("launch");
  for (const char* kind : {"matrix", "memory"}) {
    const bool there = std::any_of(profile.efficiency.begin(), profile.efficiency.end(),
                                   [&](const EfficiencyTable& table) { return table.op == kind; });
    if (!there) missing.push_back(fmt::format("efficiency of '{}'", kind));
  }
  return missing;
}

}  // namespace

std::vector<std::string> DeviceProfile::names_of(FigureMarks marks) const {
  std::vector<std::string> names;
  for (size_t i = 0; i < unverified.size(); ++i) {
    if ((marks >> std::min(i, kLastMark) & 1) != 0) names.push_back(unverified[i]);
  }
  return names;
}

Result<DeviceProfile> parse_device_profile(std::string_view text, std::string_view where) {
  WEFT_ASSIGN_OR_RETURN(const Json json, parse_json(text, where));
  DeviceProfile profile;
  ProfileReader reader{std::string(where), profile};
  WEFT_RETURN_IF_ERROR(reader.read(json));
  profile.missing = missing_figures(profile);
  return profile;
}

void set_memory_bandwidth(DeviceProfile& profile, const Figure& bytes_per_s) {
  const double ratio = bytes_per_s.value / profile.memory_bytes_per_s->value;
  for (SharedBandwidth& shared : profile.shared_bandwidth) shared.bytes_per_s *= ratio;
  profile.memory_bytes_per_s = bytes_per_s;
}

}  // namespace weft
