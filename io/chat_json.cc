// JSON text as Python's json.dumps(value, ensure_ascii=False) gives it.
#include <charconv>
#include <cstdlib>

#include <fmt/format.h>

#include "io/chat.h"

namespace weft {
namespace {

void write_string(std::string& out, std::string_view text) {
  out += '"';
  for (char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\f': out += "\\f"; break;
      case '\b': out += "\\b"; break;
      default:
        if (static_cast<uint8_t>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<uint8_t>(c));
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

// Python's repr: the shortest digits that read back as the same double, with an exponent from 1e16 and below 1e-4.
void write_float(std::string& out, double value) {
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));  // [-]d[.ddd]e[+-]dd
  if (text.starts_with('-')) {
    out += '-';
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (count > 1) out += '.' + digits.substr(1);
    out += fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  } else if (exponent < 0) {
    out += "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  } else {
    const int whole = exponent + 1;
    if (count < whole) digits.append(static_cast<size_t>(whole - count), '0');
    out += digits.substr(0, static_cast<size_t>(whole)) + '.';
    out += count > whole ? digits.substr(static_cast<size_t>(whole)) : "0";
  }
}

void write_value(std::string& out, const OrderedJson& value) {
  switch (value.type()) {
    case OrderedJson::value_t::object: {
      out += '{';
      std::string_view separator;
      for (const auto& item : value.items()) {
        out += separator;
        write_string(out, item.key());
        out += ": ";
        write_value(out, item.value());
        separator = ", ";
      }
      out += '}';
      break;
    }
    case OrderedJson::value_t::array: {
      out += '[';
      std::string_view separator;
      for (const OrderedJson& item : value) {
        out += separator;
        write_value(out, item);
        separator = ", ";
      }
      out += ']';
      break;
    }
    case OrderedJson::value_t::string: write_string(out, value.get_ref<const std::string&>()); break;
    case OrderedJson::value_t::number_float: write_float(out, value.get<double>()); break;
    case OrderedJson::value_t::number_integer: out += fmt::format("{}", value.get<int64_t>()); break;
    case OrderedJson::value_t::number_unsigned: out += fmt::format("{}", value.get<uint64_t>()); break;
    case OrderedJson::value_t::boolean: out += value.get<bool>() ? "true" : "false"; break;
    default: out += "null"; break;
  }
}

}  // namespace

std::string python_json(const OrderedJson& value) {
  std::string out;
  write_value(out, value);
  return out;
}

}  // namespace weft
