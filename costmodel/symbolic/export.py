"""A formula as text: Unicode, LaTeX, and code in Python and JavaScript that stands on its own."""

from __future__ import annotations

import re
from typing import Any

import sympy
from sympy.printing.jscode import JavascriptCodePrinter
from sympy.printing.pycode import PythonCodePrinter
from sympy.printing.str import StrPrinter

from costmodel.symbolic.formulas import Formula
from costmodel.symbolic.nomenclature import entry_of

PYTHON_HELPER = '''def smooth_max(a, b, p):
    """m*(1 + (s/m)**p)**(1/p) with m, s the larger and smaller of a, b."""
    m, s = max(a, b), min(a, b)
    return m * (1 + (s / m) ** p) ** (1 / p) if m > 0 else 0.0
'''
JS_HELPER = """function smooth_max(a, b, p) {
  const m = Math.max(a, b), s = Math.min(a, b);
  return m > 0 ? m * Math.pow(1 + Math.pow(s / m, p), 1 / p) : 0;
}
"""


class _UnicodePrinter(StrPrinter):  # type: ignore[misc]
    """``Max`` as ``max``, products with ·, small powers raised."""

    def _print_Add(self, expression: Any, order: Any = None) -> str:
        """Print a sum with a positive term first: m - D, not -D + m."""
        printed = [self._print(term) for term in self._as_ordered_terms(expression, order=order)]
        printed.sort(key=lambda text: text.startswith("-"))
        signed = [f" - {text[1:]}" if text.startswith("-") else f" + {text}" for text in printed]
        first = printed[0] if printed[0].startswith("-") else signed[0].removeprefix(" + ")
        return first + "".join(signed[1:])

    def _print_Max(self, expression: Any) -> str:
        return f"max({', '.join(self._print(item) for item in expression.args)})"

    def _print_Min(self, expression: Any) -> str:
        return f"min({', '.join(self._print(item) for item in expression.args)})"

    def _print_floor(self, expression: Any) -> str:
        return f"⌊{self._print(expression.args[0])}⌋"

    def _print_ceiling(self, expression: Any) -> str:
        return f"⌈{self._print(expression.args[0])}⌉"


def tidy(expression: Any) -> Any:
    """Return an equal expression that reads better: common factors out, integers for whole floats."""
    whole = {number: sympy.Integer(int(number)) for number in expression.atoms(sympy.Float) if number == int(number)}
    expression = expression.xreplace(whole)
    maxima = expression.atoms(sympy.Max)
    return (
        expression.xreplace({item: sympy.Max(*map(_factored, item.args)) for item in maxima})
        if maxima
        else _factored(expression)
    )


def _factored(expression: Any) -> Any:
    return sympy.factor_terms(
        sympy.factor_terms(sympy.expand(expression)) if not expression.has(sympy.Pow) else expression
    )


def to_unicode(expression: Any) -> str:
    """Return the expression as one line of Unicode."""
    text = str(_UnicodePrinter().doprint(tidy(expression)))
    for power, raised in (("**2", "²"), ("**3", "³"), ("**", "^"), ("*", "·")):
        text = re.sub(re.escape(power) + r"(?!\d)" if power in ("**2", "**3") else re.escape(power), raised, text)
    return text


def to_latex(expression: Any) -> str:
    """Return the expression as LaTeX."""
    names = {item: _latex_name(str(item)) for item in expression.free_symbols}
    return str(sympy.latex(tidy(expression), symbol_names=names, mul_symbol="dot"))


def _latex_name(name: str) -> str:
    entry = entry_of(name)
    rest = name[len(entry.name) :].lstrip("_").replace("_", r"\,")
    if not rest:
        return entry.latex
    base, _, subscript = entry.latex.partition("_")
    inner = subscript.strip("{}")
    return f"{base}_{{{inner + ',' if inner else ''}\\mathrm{{{rest}}}}}"


def to_python(formula: Formula) -> str:
    """Return a Python function of the formula: keyword arguments with the known values, seconds as the result. No imports but math."""
    printer = PythonCodePrinter({"fully_qualified_modules": True, "user_functions": {"smooth_max": "smooth_max"}})
    body = printer.doprint(formula.expression)
    arguments = ", ".join(f"{item}={float(formula.values[item])!r}" for item in formula.arguments)
    helper = PYTHON_HELPER + "\n\n" if "smooth_max(" in body else ""
    doc = f'    """{formula.name} [s] of {formula.what}, {formula.rung} rung.\n\n{_units(formula)}    """'
    start = "import math\n\n\n" if "math." in body else ""
    return f"{start}{helper}def {formula.name}_s({arguments}):\n{doc}\n    return {body}\n"


def to_javascript(formula: Formula) -> str:
    """Return a JavaScript function of the formula: one object of named arguments with the known values as defaults."""
    printer = JavascriptCodePrinter({"user_functions": {"smooth_max": "smooth_max"}})
    body = printer.doprint(formula.expression)
    arguments = ", ".join(f"{item} = {float(formula.values[item])!r}" for item in formula.arguments)
    helper = JS_HELPER if "smooth_max(" in body else ""
    about = "".join(f"\n// {line.strip()}" for line in _units(formula).splitlines())
    doc = f"// {formula.name} [s] of {formula.what}, {formula.rung} rung.{about}"
    return f"{helper}{doc}\nfunction {formula.name}_s({{{arguments}}} = {{}}) {{\n  return {body};\n}}\n"


def _units(formula: Formula) -> str:
    """Return one line per argument: its meaning and unit."""
    entries = [(item, entry_of(str(item))) for item in formula.arguments]
    return "".join(f"    {item}: {entry.meaning} [{entry.unit}]\n" for item, entry in entries)
