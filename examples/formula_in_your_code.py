"""Take the formula with you: export it as Python, run it without costmodel, and see that it agrees."""

from __future__ import annotations

import costmodel
from costmodel.symbolic.export import to_python

deployment = costmodel.deploy("Qwen3-32B", "h200", tp=2)
spike = costmodel.formula(deployment, "spike", prompt=20_000)
source = to_python(spike)
print(source)

scope: dict[str, object] = {}
exec(source, scope)
exported = scope["spike_s"]
assert callable(exported)
predicted = costmodel.predict(prompt=20_000, model="Qwen3-32B", gpu="h200", tp=2).rungs.roofline.spike_s
assert abs(exported() / predicted - 1) < 1e-12
print(
    f"exported {exported() * 1e3:.3f} ms, predicted {predicted * 1e3:.3f} ms; at 40,000 tokens {exported(n=40_000) * 1e3:.3f} ms"
)
for item in costmodel.elasticities(spike)[:5]:
    print(f"1 % more {item.symbol}: {item.value:+.2f} %")
