#!/usr/bin/env python3
"""`unisono codec` as people use it: real files and pipes through the real program."""

import array
import json
import math
import os
import pty
import random
import struct
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree
import zlib

from support import TOOL

MESSAGE = 1 << 20  # elements
NAN = float("nan")


def floats(values):
    return struct.pack(f"<{len(values)}f", *values)


def gold(count, seed):
    """The golden input of the codec's digests."""
    values, state = [], seed
    for i in range(count):
        state = (1664525 * state + 1013904223) % (1 << 32)
        value = (state // 256 - (1 << 23)) / (1 << 23)
        values.append(16 * value if i % 37 == 5 else value)
    return floats(values)


def gaussian(count, seed=1):
    source = random.Random(seed)
    return array.array("f", [source.gauss(0, 1) for _ in range(count)]).tobytes()


def crc(data):
    return f"{zlib.crc32(data):08x}"


class CodecTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="unisono-codec-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name, data=None):
        path = os.path.join(self.folder, name)
        if data is not None:
            with open(path, "wb") as file:
                file.write(data)
        return path

    def codec(self, *words, data=b"", status=0):
        """Standard output and error."""
        done = subprocess.run(
            [TOOL, "codec", *words], input=data, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, check=False
        )
        self.assertEqual(done.returncode, status, (words, done.stderr))
        return done.stdout, done.stderr.decode()

    def numbers(self, *words, data=b""):
        out, error = self.codec("roundtrip", "--json", *words, data=data)
        self.assertEqual(error, "")
        return json.loads(out)

    def refused(self, *words, data=b"", status=1):
        """Returns the text on standard error. Standard output may hold the data before the damage, never more."""
        out, error = self.codec(*words, data=data, status=status)
        self.assertTrue(error.startswith("unisono codec: "), error)
        return error


class Bytes(CodecTest):
    def test_golden_digests(self):
        elements = gold(1000, 1)
        for bits, group, options, length, block, decoded in (
            (4, 128, ["--metadata", "f16", "--spikes", "off"], 532, "85712b42", "9e89f191"),
            (2, 128, ["--metadata", "f16", "--spikes", "off"], 284, "f1b118b4", "005ad56b"),
            (3, 32, ["--metadata", "bf16", "--spikes", "on"], 696, "16fe8a8a", "23a48c57"),
            (5, 64, ["--metadata", "f32", "--spikes", "off"], 756, "9c0cb4bd", "ec912f4c"),
        ):
            words = ["--codec", f"int{bits}", "--group", str(group), *options]
            message = self.codec("encode", *words, data=elements)[0]
            self.assertEqual(message[:3] + message[4:8], bytes([1, bits, group.bit_length() - 1]) + struct.pack("<I", 1000))
            self.assertEqual((len(message) - 8, crc(message[8:])), (length, block), words)
            self.assertEqual(crc(self.codec("roundtrip", *words, data=elements)[0]), decoded, words)
            self.assertEqual(crc(self.codec("decode", data=message)[0]), decoded, words)

    def test_encode_and_decode_are_roundtrip_byte_for_byte(self):
        elements = gaussian(10_001)
        for codec in (
            "plain",
            "f16",
            "bf16",
            "int8",
            "int7:group=32",
            "int5:spikes=on",
            "int3",
            "quantize:bits=2,group=256,metadata=f32",
        ):
            message = self.codec("encode", "-c", codec, data=elements)[0]
            given = [] if codec.startswith(("int", "quantize")) else ["-c", codec]
            self.assertEqual(
                self.codec("decode", *given, data=message)[0], self.codec("roundtrip", "-c", codec, data=elements)[0], codec
            )

    def test_elements_of_16_bits(self):
        f16 = struct.pack("<1000e", *[math.sin(i) for i in range(1000)])
        for dtype in ("f16", "bf16"):
            message = self.codec("encode", "-c", "int6", "-d", dtype, data=f16)[0]
            self.assertEqual(message[3], 0 if dtype == "f16" else 1)  # the type of scales
            self.assertEqual(
                self.codec("decode", "-d", dtype, data=message)[0],
                self.codec("roundtrip", "-c", "int6", "-d", dtype, data=f16)[0],
            )
        out, error = self.codec("roundtrip", "-c", "bf16", "-d", "f16", data=f16)
        self.assertEqual(out, f16)
        self.assertIn("elements of f16 are sent unchanged, not as bf16", error)
        worst = max(
            abs(x - y)
            for x, y in zip(
                struct.unpack("<1000e", self.codec("roundtrip", "-d", "f16", data=f16)[0]), struct.unpack("<1000e", f16)
            )
        )
        self.assertLess(worst, 0.005)

    def test_zeros_and_constants_are_exact(self):
        for value in (0.0, 1.0, -0.375):
            elements = floats([value] * 1000)
            for bits in range(2, 9):
                self.assertEqual(self.codec("roundtrip", "-c", f"int{bits}", data=elements)[0], elements, (value, bits))
        numbers = self.numbers("-c", "int2", data=floats([0.0] * 1000))
        self.assertEqual((numbers["snr_db"], numbers["max_abs_error"], numbers["rms_error"]), (None, 0, 0))

    def test_plain_elements_are_decoded_unchanged(self):
        elements = floats([1.5, NAN, float("inf"), -0.0])
        self.assertEqual(self.codec("roundtrip", "-c", "plain", data=elements)[0], elements)

    def test_a_nan_affects_only_its_own_group(self):
        values = [math.cos(i) for i in range(512)]
        values[130], values[131] = NAN, float("-inf")
        out = struct.unpack("<512f", self.codec("roundtrip", "-c", "int8", data=floats(values))[0])
        self.assertEqual([i for i, value in enumerate(out) if math.isnan(value)], list(range(128, 256)))
        numbers = self.numbers("-c", "int8", data=floats(values))
        self.assertEqual((numbers["nonfinite"], numbers["nonfinite_groups"], numbers["compared"]), (2, 1, 384))
        self.assertGreater(numbers["snr_db"], 40)
        self.assertIn(
            "caution  2 elements not finite; 1 group became NaN", self.codec("roundtrip", "-c", "int8", data=floats(values))[1]
        )

    def test_sizes_around_a_message_and_no_elements(self):
        elements = gaussian(MESSAGE + 1)
        whole = self.codec("roundtrip", "-c", "int4", data=elements)[0]
        for count, headers in ((0, 1), (1, 1), (MESSAGE - 1, 1), (MESSAGE, 2), (MESSAGE + 1, 2)):
            message = self.codec("encode", "-c", "int4", data=elements[:4 * count])[0]
            decoded = self.codec("decode", data=message)[0]
            self.assertEqual(len(decoded), 4 * count)
            self.assertEqual(message[0::557064][:headers], b"\1" * headers, count)
            whole_groups = 4 * (count // 128 * 128)
            self.assertEqual(decoded[:whole_groups], whole[:whole_groups], count)
        self.assertEqual(len(self.codec("encode", data=b"")[0]), 8)


class Numbers(CodecTest):
    def test_json_reports_the_run_and_writes_no_elements_unless_requested(self):
        elements = gaussian(100_000)
        numbers = self.numbers("-c", "int4", "-g", "64", data=elements)
        self.assertEqual(
            list(numbers),
            [
                "codec",
                "dtype",
                "elements",
                "bytes_in",
                "message_bytes",
                "header_bytes",
                "block_bytes",
                "bits_per_element",
                "ratio",
                "compared",
                "snr_db",
                "max_abs_error",
                "rms_error",
                "saturated",
                "nonfinite",
                "nonfinite_groups",
            ],
        )
        self.assertEqual(
            (numbers["codec"], numbers["dtype"], numbers["elements"], numbers["bytes_in"]),
            ("int4:group=64,metadata=bf16,spikes=off", "f32", 100_000, 400_000),
        )
        output = self.path("out.f32")
        again = self.numbers("-c", "int4", "-g", "64", "--output", output, data=elements)
        self.assertEqual(again, numbers)
        with open(output, "rb") as file:
            decoded = file.read()
        self.assertEqual(decoded, self.codec("roundtrip", "-c", "int4", "-g", "64", data=elements)[0])
        before, after = array.array("f", elements), array.array("f", decoded)
        signal, noise = math.fsum(x * x for x in before), math.fsum((x - y) ** 2 for x, y in zip(before, after))
        self.assertAlmostEqual(numbers["snr_db"], 10 * math.log10(signal / noise), places=6)
        self.assertAlmostEqual(numbers["rms_error"], math.sqrt(noise / 100_000), places=9)
        self.assertEqual(numbers["max_abs_error"], max(abs(x - y) for x, y in zip(before, after)))

    def test_signal_to_noise_is_as_documented(self):
        elements = gaussian(200_000)
        for bits, expected, tolerance in ((8, 44.6, 0.2), (4, 20.0, 0.2), (2, 6.0, 0.35)):
            numbers = self.numbers("-c", f"int{bits}", "-m", "f16", "-s", "off", data=elements)
            self.assertAlmostEqual(numbers["snr_db"], expected, delta=tolerance)

    def test_shorthands_override_and_different_steps_are_reported(self):
        self.assertEqual(
            self.numbers("-c", "int4:group=32,spikes=on", "-g", "256", "-s", "off", "-m", "f32")["codec"],
            "int4:group=256,metadata=f32,spikes=off",
        )
        error = self.codec("roundtrip", "-c", "int8/int4", data=gaussian(128))[1]
        self.assertIn("of int8/int4, the reduce step's codec is used: int8:", error)

    def test_the_summary_goes_to_standard_error(self):
        error = self.codec("roundtrip", "-c", "int4", data=gaussian(100_000))[1]
        self.assertRegex(
            error,
            r"^int4:metadata=bf16,spikes=off: 100,000 elements of f32\n  size     400\.00 kB as 53\.\d+ kB, with 8 B of headers; 4\.25\d* bits an element, "
            r"ratio 7\.5\d\n  error    SNR (19|20)\.\d dB, largest 0\.\d+, root mean square 0\.\d+\n$",
        )

    def test_compare_tries_all(self):
        path = self.path("layer.f32", gaussian(50_000))
        table = self.codec("compare", path)[0].decode()
        self.assertEqual(len([line for line in table.splitlines() if not line.startswith("#")]), 17)
        plot = self.path("plot.svg")
        result = json.loads(self.codec("compare", path, "--json", "--plot", plot)[0])
        self.assertEqual((result["input"], result["elements"], len(result["rows"])), ("layer.f32", 50_000, 17))
        self.assertEqual(result["rows"][3], self.numbers("-c", "int8", "-s", "off", path))
        by_name = {row["codec"]: row["snr_db"] for row in result["rows"]}
        self.assertGreater(by_name["int2:metadata=bf16,spikes=on"], by_name["int2:metadata=bf16,spikes=off"])
        texts = [element.text for element in xml.etree.ElementTree.parse(plot).iter("{http://www.w3.org/2000/svg}text")]
        for text in (
            "signal-to-noise ratio (dB)",
            "width of a code (bits)",
            "with spikes",
            "without spikes",
            "Quality: layer.f32",
        ):
            self.assertIn(text, texts)
        self.assertEqual(len(json.loads(self.codec("compare", "--json", "-d", "f16", path)[0])["rows"]), 15)
        file = self.path("layer.json")
        self.assertEqual(self.codec("compare", path, "--output", file)[0].decode(), table)
        with open(file, encoding="utf-8") as text:
            self.assertEqual(json.load(text), result)
        self.assertIn("0 elements", self.codec("compare")[0].decode())


class Refusals(CodecTest):
    def test_sizes_that_are_no_whole_elements(self):
        for words in (["roundtrip"], ["encode"], ["compare"]):
            self.assertIn(
                "standard input has 4003 bytes, no multiple of the 4 bytes of an element of f32",
                self.refused(*words, data=bytes(4003)),
            )
        path, output = self.path("odd.f16", bytes(4003)), self.path("kept", b"kept")
        self.assertIn(
            "odd.f16 has 4003 bytes, no multiple of the 2", self.refused("roundtrip", path, "-d", "f16", "-o", output)
        )
        with open(output, "rb") as file:
            self.assertEqual(file.read(), b"kept")
        self.assertIn("5 bytes, no multiple of the 2", self.refused("decode", "-c", "bf16", data=bytes(5)))

    def test_damaged_truncated_and_foreign_files(self):
        message = self.codec("encode", "-c", "int4", data=gaussian(1000))[0]
        for data, expected in (
            (b"", "empty"),
            (message[:5], "5 bytes, less than the header"),
            (message[:300], "cut off: ends after 300 bytes, inside message 1"),
            (message + b"\0", "but goes on"),
            (floats([1.0] * 100), "no file of quantised messages: begins with bytes 00 00 80 3f"),
            (b"\x7fELF" + bytes(100), "begins with bytes 7f 45 4c 46"),
            (message[:508] + b"\x80\xbf" + message[510:], "message 1, at byte 0: a damaged block"),
        ):
            self.assertIn(expected, self.refused("decode", data=data))
            self.assertEqual(self.codec("decode", data=data, status=1)[0], b"")
        self.assertIn(
            "holds int4:metadata=bf16,spikes=off, not int4:group=64,",
            self.refused("decode", "-c", "int4:group=64", data=message),
        )
        self.codec("decode", "-c", "int4", data=message)

    def test_damage_after_valid_messages_keeps_them(self):
        message = self.codec("encode", "-c", "int4", data=gaussian(MESSAGE + 128))[0]
        out, error = self.codec("decode", data=message[:-1], status=1)
        self.assertEqual(len(out), 4 * MESSAGE)
        self.assertIn("cut off", error)

    def test_wrong_command_lines(self):
        for words, expected in (
            ([], "the action is missing"),
            (["shrink"], "'shrink' is none of roundtrip"),
            (["roundtrip", "-c", "int9"], 'name "int9" is none of'),
            (["roundtrip", "-g", "65"], 'group "65" is none of 32, 64, 128, 256'),
            (["roundtrip", "-c", "bf16", "-g", "64"], "are for quantised elements, not for bf16"),
            (["roundtrip", "-d", "f64"], "--dtype 'f64' is none of"),
            (["decode", "-g", "64"], "--group has no effect on decode"),
            (["compare", "-c", "int4"], "--codec has no effect on compare"),
            (["encode", "--plot", "x"], "--plot has no effect on encode"),
            (["roundtrip", "a", "-i", "b"], "two inputs, a and --input b"),
            (["roundtrip", "--json", "-o", "-"], "would both write to standard output"),
            (["roundtrip", "--spike", "on"], "Did you mean '--spikes'?"),
        ):
            self.assertIn(expected, self.refused(*words, status=2))

    def test_files_that_cannot_be_read_or_written(self):
        path = self.path("layer.f32", gaussian(1000))
        self.assertIn("cannot read /nonexistent: No such file", self.refused("roundtrip", "/nonexistent"))
        self.assertIn("cannot read", self.refused("roundtrip", self.folder))
        for words, expected in (
            (["roundtrip", path, "-o", "/nonexistent/x"], "--output: cannot write /nonexistent/x: No such file"),
            (["roundtrip", path, "-o", "/dev/full"], "--output: cannot write /dev/full after 0 bytes: No space left"),
            (["compare", path, "-o", "/dev/full"], "--output: cannot write /dev/full after 0 bytes: No space left"),
            (["compare", path, "--plot", "/nonexistent/x.svg"], "--plot: cannot write /nonexistent/x.svg: No such file"),
            (["roundtrip", "--input", "/nonexistent"], "--input: cannot read /nonexistent: No such file"),
        ):
            self.assertIn(expected, self.refused(*words))
        self.assertIn("is read and written at once", self.refused("roundtrip", path, "-o", path, status=2))
        self.assertEqual(os.path.getsize(path), 4000)

    def test_a_closed_reader_ends_the_command_quietly(self):
        path = self.path("zeros.f32", bytes(1 << 22))
        for words in (["roundtrip", path], ["encode", "-c", "plain", path], ["compare", path], ["roundtrip", "--json", path]):
            read, write = os.pipe()
            os.close(read)
            with subprocess.Popen([TOOL, "codec", *words], stdout=write, stderr=subprocess.PIPE) as process:
                os.close(write)
                self.assertEqual((process.communicate(timeout=60)[1], process.returncode), (b"", 141), words)

    def test_standard_output_that_is_closed(self):
        path = self.path("zeros.f32", bytes(4096))
        done = subprocess.run(
            ["sh", "-c", '"$0" codec roundtrip "$1" >&-', TOOL, path], stderr=subprocess.PIPE, timeout=60, check=False
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"cannot write standard output", done.stderr)


class Terminals(CodecTest):
    def with_terminal(self, *words, stdin=False, stdout=False, data=None):
        """Exit code and standard error, with a terminal as standard input or output."""
        master, terminal = pty.openpty()
        self.addCleanup(os.close, master)
        done = subprocess.run(
            [TOOL, "codec", *words],
            stdin=terminal if stdin else subprocess.DEVNULL,
            stdout=terminal if stdout else subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
        os.close(terminal)
        return done.returncode, done.stderr.decode()

    def test_elements_are_not_read_from_a_terminal(self):
        for words, expected in (
            (["roundtrip"], "elements of f32, little-endian, are read from standard input"),
            (["decode"], "messages are read from standard input"),
            (["compare"], "elements of f32"),
        ):
            code, error = self.with_terminal(*words, stdin=True)
            self.assertEqual(code, 2)
            self.assertIn(expected, error)

    def test_bytes_are_not_written_to_a_terminal(self):
        path = self.path("layer.f32", gaussian(1000))
        code, error = self.with_terminal("roundtrip", path, stdout=True)
        self.assertEqual(code, 0)
        self.assertIn("SNR", error)
        code, error = self.with_terminal("encode", path, stdout=True)
        self.assertEqual(code, 2)
        self.assertIn("messages are no text for a terminal", error)


if __name__ == "__main__":
    unittest.main()
