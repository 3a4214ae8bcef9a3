"""The same equations read with SymPy symbols: formulas, derivatives, exports. The only package that imports SymPy."""
