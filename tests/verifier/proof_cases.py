# ruff: noqa: E501 - a rule reads best on one line
"""Rules with known truth for the prover: (name, forall, lhs, rhs, where). CV and CG are attributes of Conv."""

from __future__ import annotations

from superopt.rules import Rule, parse_rule

V = {"s": "ints[2]>=1", "p": "ints[4]>=0", "d": "ints[2]>=1"}
G = {**V, "g": "int>=1"}
CV = "strides=s, pads=p, dilations=d, group=1"
CG = "strides=s, pads=p, dilations=d, group=g"
C1 = "strides=[1,1], pads=[0,0,0,0], dilations=[1,1], group=1"

Case = tuple[str, dict[str, str], str, str] | tuple[str, dict[str, str], str, str, list[str]]

CONV = {"x": "f[n,c,h,w]", "a": "f[o,c,kh,kw]"}
GROUPED = {"x": "f[n,g*c,h,w]", "a": "f[g*o,c,kh,kw]"}
BN = {"q": "f[{0}]", "b": "f[{0}]", "m": "f[{0}]", "v": "f[{0}]", "e": "real>0"}


def bn(channels: str) -> dict[str, str]:
    """Types of a batch normalisation's parameters."""
    return {k: t.format(channels) for k, t in BN.items()}


TRUE: list[Case] = [
    # Convolutions
    ("conv weight sum", {**GROUPED, "b": "f[g*o,c,kh,kw]", **G}, f"Add(Conv(x, a, {CG}), Conv(x, b, {CG}))", f"Conv(x, Add(a, b), {CG})"),
    ("conv input sum", {**GROUPED, "y": "f[n,g*c,h,w]", **G}, f"Add(Conv(x, a, {CG}), Conv(y, a, {CG}))", f"Conv(Add(x, y), a, {CG})"),
    ("conv scale", {**GROUPED, "k": "real", **G}, f"Mul(Conv(x, a, {CG}), k)", f"Conv(x, Mul(a, k), {CG})"),
    ("conv scale input", {**GROUPED, "k": "real", **G}, f"Conv(Mul(x, k), a, {CG})", f"Conv(x, Mul(a, k), {CG})"),
    ("conv concat out", {**CONV, "b": "f[r,c,kh,kw]", **V}, f"Concat(Conv(x, a, {CV}), Conv(x, b, {CV}), axis=1)", f"Conv(x, Concat(a, b, axis=0), {CV})"),
    ("conv concat in", {"x": "f[n,c,h,w]", "y": "f[n,r,h,w]", "a": "f[o,c,kh,kw]", "b": "f[o,r,kh,kw]", **V}, f"Add(Conv(x, a, {CV}), Conv(y, b, {CV}))", f"Conv(Concat(x, y, axis=1), Concat(a, b, axis=1), {CV})"),
    ("conv concat batch", {**GROUPED, "y": "f[r,g*c,h,w]", **G}, f"Concat(Conv(x, a, {CG}), Conv(y, a, {CG}), axis=0)", f"Conv(Concat(x, y, axis=0), a, {CG})"),
    ("two convs to group conv", {**GROUPED, "y": "f[n,g*c,h,w]", "b": "f[g*o,c,kh,kw]", **G}, f"Concat(Conv(x, a, {CG}), Conv(y, b, {CG}), axis=1)", f"Conv(Concat(x, y, axis=1), Concat(a, b, axis=0), {CG.replace('group=g', 'group=2*g')})"),
    ("conv bias as add", {**GROUPED, "b": "f[g*o]", **G}, f"Conv(x, a, b, {CG})", f"Add(Conv(x, a, {CG}), Reshape(b, shape=[1, g*o, 1, 1]))"),
    ("conv bias sum", {**CONV, "b": "f[o]", "t": "f[o]", **V}, f"Add(Conv(x, a, b, {CV}), Reshape(t, shape=[1, o, 1, 1]))", f"Conv(x, a, Add(b, t), {CV})"),
    ("bn fold", {**CONV, **bn("o"), **V}, f"BatchNormalization(Conv(x, a, {CV}), q, b, m, v, epsilon=e)", f"Conv(x, Mul(a, Reshape(Div(q, Sqrt(Add(v, e))), shape=[o, 1, 1, 1])), Sub(b, Mul(m, Div(q, Sqrt(Add(v, e))))), {CV})"),
    ("bn fold grouped", {**GROUPED, **bn("g*o"), **G}, f"BatchNormalization(Conv(x, a, {CG}), q, b, m, v, epsilon=e)", f"Conv(x, Mul(a, Reshape(Div(q, Sqrt(Add(v, e))), shape=[g*o, 1, 1, 1])), Sub(b, Mul(m, Div(q, Sqrt(Add(v, e))))), {CG})"),
    ("bn fold biased", {**CONV, "t": "f[o]", **bn("o"), **V}, f"BatchNormalization(Conv(x, a, t, {CV}), q, b, m, v, epsilon=e)", f"Conv(x, Mul(a, Reshape(Div(q, Sqrt(Add(v, e))), shape=[o, 1, 1, 1])), Add(b, Mul(Sub(t, m), Div(q, Sqrt(Add(v, e))))), {CV})"),
    ("bn before 1x1 conv", {"x": "f[n,c,h,w]", "a": "f[o,c,1,1]", **bn("c")}, f"Conv(BatchNormalization(x, q, b, m, v, epsilon=e), a, {C1})", f"Conv(x, Mul(a, Reshape(Div(q, Sqrt(Add(v, e))), shape=[1, c, 1, 1])), Reshape(MatMul(Reshape(a, shape=[o, c]), Reshape(Sub(b, Mul(m, Div(q, Sqrt(Add(v, e))))), shape=[c, 1])), shape=[o]), {C1})"),
    ("enlarge 1x1 to 3x3", {"x": "f[n,c,h,w]", "a": "f[o,c,1,1]", "s": "ints[2]>=1", "d": "ints[2]>=1"}, "Conv(x, a, strides=s, pads=[0,0,0,0], dilations=[1,1], group=1)", "Conv(x, Pad(a, pads=[0,0,1,1,0,0,1,1], value=0.0), strides=s, pads=[d_0,d_1,d_0,d_1], dilations=d, group=1)"),
    ("enlarge kernel", {**GROUPED, **G, "t": "ints[4]>=0"}, f"Conv(x, a, {CG})", "Conv(x, Pad(a, pads=[0,0,t_0,t_1,0,0,t_2,t_3], value=0.0), strides=s, pads=[p_0+t_0*d_0, p_1+t_1*d_1, p_2+t_2*d_0, p_3+t_3*d_1], dilations=d, group=g)"),
    ("pad into conv", {**GROUPED, **G, "t": "ints[4]>=0"}, f"Conv(Pad(x, pads=[0,0,t_0,t_1,0,0,t_2,t_3], value=0.0), a, {CG})", "Conv(x, a, strides=s, pads=[p_0+t_0, p_1+t_1, p_2+t_2, p_3+t_3], dilations=d, group=g)"),
    ("1x1 conv as matmul", {"x": "f[n,c,h,w]", "a": "f[o,c,1,1]"}, f"Conv(x, a, {C1})", "Reshape(MatMul(Reshape(a, shape=[o, c]), Reshape(x, shape=[n, c, h*w])), shape=[n, o, h, w])"),
    ("1x1 convs compose", {"x": "f[n,c,h,w]", "a": "f[o,c,1,1]", "b": "f[r,o,1,1]"}, f"Conv(Conv(x, a, {C1}), b, {C1})", f"Conv(x, Reshape(MatMul(Reshape(b, shape=[r, o]), Reshape(a, shape=[o, c])), shape=[r, c, 1, 1]), {C1})"),
    ("average pool as depthwise conv", {"x": "f[n,c,h,w]", "s": "ints[2]>=1", "p": "ints[4]>=0", "k": "ints[2]>=1"}, "AveragePool(x, kernel_shape=k, strides=s, pads=p, dilations=[1,1], count_include_pad=1)", "Conv(x, Div(ConstantOfShape(shape=[c,1,k_0,k_1], value=1.0), ReduceSum(ConstantOfShape(shape=[k_0*k_1], value=1.0), axes=[0], keepdims=1)), strides=s, pads=p, dilations=[1,1], group=c)", ["p_0 < k_0", "p_1 < k_1", "p_2 < k_0", "p_3 < k_1"]),
    ("average pool 3x3 as conv", {"x": "f[n,c,h,w]", "s": "ints[2]>=1"}, "AveragePool(x, kernel_shape=[3,3], strides=s, pads=[1,1,1,1], dilations=[1,1], count_include_pad=1)", "Mul(Conv(x, ConstantOfShape(shape=[c,1,3,3], value=1.0), strides=s, pads=[1,1,1,1], dilations=[1,1], group=c), Reciprocal(9.0))"),
    ("identity conv", {"x": "f[n,c,h,w]"}, f"Conv(x, Reshape(EyeLike(shape=[c,c], k=0), shape=[c,c,1,1]), {C1})", "x"),
    ("conv 1d bias", {"x": "f[n,c,h]", "a": "f[o,c,k]", "b": "f[o,c,k]", "s": "int>=1", "p": "ints[2]>=0"}, "Add(Conv(x, a, strides=[s], pads=p, dilations=[1], group=1), Conv(x, b, strides=[s], pads=p, dilations=[1], group=1))", "Conv(x, Add(a, b), strides=[s], pads=p, dilations=[1], group=1)"),
    ("conv 3d", {"x": "f[n,c,h,w,z]", "a": "f[o,c,k,l,m]", "y": "f[n,c,h,w,z]", "s": "ints[3]>=1", "p": "ints[6]>=0"}, "Add(Conv(x, a, strides=s, pads=p, dilations=[1,1,1], group=1), Conv(y, a, strides=s, pads=p, dilations=[1,1,1], group=1))", "Conv(Add(x, y), a, strides=s, pads=p, dilations=[1,1,1], group=1)"),
    ("conv of neg", {**GROUPED, **G}, f"Neg(Conv(x, a, {CG}))", f"Conv(x, Neg(a), {CG})"),
    ("split conv", {**CONV, "b": "f[r,c,kh,kw]", **V}, f"Conv(x, b, {CV})", f"Split(Conv(x, Concat(a, b, axis=0), {CV}), axis=1, split=[o, r])[1]"),
    ("relu of convs concat", {**CONV, "b": "f[r,c,kh,kw]", **V}, f"Concat(Relu(Conv(x, a, {CV})), Relu(Conv(x, b, {CV})), axis=1)", f"Relu(Conv(x, Concat(a, b, axis=0), {CV}))"),
    ("conv per channel scale", {**GROUPED, "q": "f[g*o]", **G}, f"Mul(Conv(x, a, {CG}), Reshape(q, shape=[1, g*o, 1, 1]))", f"Conv(x, Mul(a, Reshape(q, shape=[g*o, 1, 1, 1])), {CG})"),
    # Matrix products
    ("matmul associative", {"a": "f[...,m,k]", "b": "f[...,k,n]", "c": "f[...,n,p]"}, "MatMul(MatMul(a, b), c)", "MatMul(a, MatMul(b, c))"),
    ("matmul distributive", {"a": "f[...,m,k]", "b": "f[...,k,n]", "c": "f[...,k,n]"}, "Add(MatMul(a, b), MatMul(a, c))", "MatMul(a, Add(b, c))"),
    ("matmul transposes", {"a": "f[m,k]", "b": "f[k,n]"}, "Transpose(MatMul(a, b), perm=[1,0])", "MatMul(Transpose(b, perm=[1,0]), Transpose(a, perm=[1,0]))"),
    ("qkv", {"x": "f[...,b,k]", "a": "f[k,m]", "c": "f[k,n]", "e": "f[k,p]"}, "Concat(MatMul(x, a), MatMul(x, c), MatMul(x, e), axis=-1)", "MatMul(x, Concat(a, c, e, axis=1))"),
    ("qkv split", {"x": "f[b,k]", "a": "f[k,m]", "c": "f[k,n]"}, "MatMul(x, c)", "Split(MatMul(x, Concat(a, c, axis=1)), axis=1, split=[m, n])[1]"),
    ("matmul k concat", {"a": "f[m,k]", "b": "f[m,l]", "c": "f[k,n]", "d": "f[l,n]"}, "MatMul(Concat(a, b, axis=1), Concat(c, d, axis=0))", "Add(MatMul(a, c), MatMul(b, d))"),
    ("matmul rows concat", {"a": "f[m,k]", "b": "f[l,k]", "c": "f[k,n]"}, "MatMul(Concat(a, b, axis=0), c)", "Concat(MatMul(a, c), MatMul(b, c), axis=0)"),
    ("matmul scale", {"a": "f[...,m,k]", "b": "f[...,k,n]", "s": "real"}, "MatMul(Mul(a, s), b)", "Mul(MatMul(a, b), s)"),
    ("matmul column scale", {"a": "f[m,k]", "b": "f[k,n]", "s": "f[n]"}, "Mul(MatMul(a, b), s)", "MatMul(a, Mul(b, s))"),
    ("matmul inner scale", {"a": "f[m,k]", "b": "f[k,n]", "s": "f[k]"}, "MatMul(Mul(a, s), b)", "MatMul(a, Mul(b, Reshape(s, shape=[k, 1])))"),
    ("matmul identity", {"a": "f[m,k]"}, "MatMul(a, EyeLike(shape=[k,k], k=0))", "a"),
    ("gemm", {"a": "f[m,k]", "b": "f[k,n]", "c": "f[n]"}, "Gemm(a, b, c, alpha=1.0, beta=1.0, transA=0, transB=0)", "Add(MatMul(a, b), c)"),
    ("gemm transposed", {"a": "f[m,k]", "b": "f[n,k]", "c": "f[n]"}, "Gemm(a, b, c, alpha=0.5, beta=2.0, transA=0, transB=1)", "Add(Mul(MatMul(a, Transpose(b, perm=[1,0])), 0.5), Mul(c, 2.0))"),
    ("fold affine into matmul", {"a": "f[m,k]", "b": "f[k,n]", "c": "f[k]"}, "MatMul(Add(a, c), b)", "Add(MatMul(a, b), MatMul(Reshape(c, shape=[1, k]), b))"),
    ("matmul flattened batch", {"x": "f[b,t,k]", "a": "f[k,n]"}, "MatMul(x, a)", "Reshape(MatMul(Reshape(x, shape=[b*t, k]), a), shape=[b, t, n])"),
    ("matmul as einsum", {"a": "f[m,k]", "b": "f[k,n]"}, 'Einsum(a, b, equation="ij,jk->ik")', "MatMul(a, b)"),
    ("matmul slice", {"a": "f[m,k]", "b": "f[k,n]", "c": "f[k,l]"}, "Slice(MatMul(a, Concat(b, c, axis=1)), starts=[0], ends=[n], axes=[1], steps=[1])", "MatMul(a, b)"),
    # Moving elements
    ("transposes compose", {"x": "f[a,b,c]"}, "Transpose(Transpose(x, perm=[1,2,0]), perm=[1,2,0])", "Transpose(x, perm=[2,0,1])"),
    ("reshapes compose", {"x": "f[a,b,c]"}, "Reshape(Reshape(x, shape=[a*b, c]), shape=[a, b*c])", "Reshape(x, shape=[a, b*c])"),
    ("relu reshape", {"x": "f[a,b*c]"}, "Relu(Reshape(x, shape=[a,b,c]))", "Reshape(Relu(x), shape=[a,b,c])"),
    ("relu transpose", {"x": "f[a,b]"}, "Relu(Transpose(x, perm=[1,0]))", "Transpose(Relu(x), perm=[1,0])"),
    ("concat of concats", {"x": "f[a,b]", "y": "f[c,b]", "z": "f[d,b]"}, "Concat(Concat(x, y, axis=0), z, axis=0)", "Concat(x, Concat(y, z, axis=0), axis=0)"),
    ("split of concat", {"x": "f[a,b]", "y": "f[c,b]"}, "Split(Concat(x, y, axis=0), axis=0, split=[a, c])[0]", "x"),
    ("concat of split", {"x": "f[a+b,c]"}, "Concat(Split(x, axis=0, split=[a, b])[0], Split(x, axis=0, split=[a, b])[1], axis=0)", "x"),
    ("add concat", {"x": "f[a,c]", "y": "f[b,c]", "z": "f[a,c]", "t": "f[b,c]"}, "Add(Concat(x, y, axis=0), Concat(z, t, axis=0))", "Concat(Add(x, z), Add(y, t), axis=0)"),
    ("slice of slice", {"x": "f[n]", "a": "int>=0", "b": "int>=0", "c": "int>=1"}, "Slice(Slice(x, starts=[a], ends=[n], axes=[0], steps=[1]), starts=[b], ends=[b+c], axes=[0], steps=[1])", "Slice(x, starts=[a+b], ends=[a+b+c], axes=[0], steps=[1])", ["a + b + c <= n"]),
    ("slice of add", {"x": "f[n]", "y": "f[n]", "a": "int>=0", "c": "int>=1"}, "Slice(Add(x, y), starts=[a], ends=[a+c], axes=[0], steps=[1])", "Add(Slice(x, starts=[a], ends=[a+c], axes=[0], steps=[1]), Slice(y, starts=[a], ends=[a+c], axes=[0], steps=[1]))", ["a + c <= n"]),
    ("head split matmul", {"x": "f[b,t,k]", "a": "f[k,h*d]"}, "Transpose(Reshape(MatMul(x, a), shape=[b,t,h,d]), perm=[0,2,1,3])", "MatMul(Reshape(x, shape=[b,1,t,k]), Transpose(Reshape(a, shape=[k,h,d]), perm=[1,0,2]))"),
    ("head merge matmul", {"x": "f[b,h,t,d]", "a": "f[h*d,k]"}, "MatMul(Reshape(Transpose(x, perm=[0,2,1,3]), shape=[b,t,h*d]), a)", "ReduceSum(MatMul(x, Reshape(a, shape=[1,h,d,k])), axes=[1], keepdims=0)"),
    ("channel shuffle twice", {"x": "f[n,a*b,h]"}, "Reshape(Transpose(Reshape(Reshape(Transpose(Reshape(x, shape=[n,a,b,h]), perm=[0,2,1,3]), shape=[n,a*b,h]), shape=[n,b,a,h]), perm=[0,2,1,3]), shape=[n,a*b,h])", "x"),
    ("squeeze unsqueeze", {"x": "f[a,b]"}, "Squeeze(Unsqueeze(x, axes=[1]), axes=[1])", "x"),
    ("flatten", {"x": "f[a,b,c]"}, "Flatten(x, axis=1)", "Reshape(x, shape=[a, b*c])"),
    ("pads compose", {"x": "f[n]", "a": "ints[2]>=0", "b": "ints[2]>=0"}, "Pad(Pad(x, pads=a, value=0.0), pads=b, value=0.0)", "Pad(x, pads=[a_0+b_0, a_1+b_1], value=0.0)"),
    ("pad as concat", {"x": "f[n]", "a": "int>=1"}, "Pad(x, pads=[a, 0], value=1.5)", "Concat(ConstantOfShape(shape=[a], value=1.5), x, axis=0)"),
    ("gather of matmul", {"x": "f[v,k]", "i": "i[t]<v", "a": "f[k,n]"}, "MatMul(Gather(x, i, axis=0), a)", "Gather(MatMul(x, a), i, axis=0)"),
    ("expand add", {"x": "f[1,n]", "y": "f[m,n]"}, "Add(Expand(x, shape=[m,n]), y)", "Add(x, y)"),
    ("depth to space inverse", {"x": "f[n,4*c,h,w]"}, 'SpaceToDepth(DepthToSpace(x, blocksize=2, mode="DCR"), blocksize=2)', "x"),
    # Reductions
    ("sum of sums", {"x": "f[a,b,c]"}, "ReduceSum(ReduceSum(x, axes=[2], keepdims=0), axes=[1], keepdims=0)", "ReduceSum(x, axes=[1,2], keepdims=0)"),
    ("max of maxima", {"x": "f[a,b,c]"}, "ReduceMax(ReduceMax(x, axes=[2], keepdims=0), axes=[1], keepdims=0)", "ReduceMax(x, axes=[1,2], keepdims=0)"),
    ("sum as matmul", {"x": "f[m,k]"}, "ReduceSum(x, axes=[1], keepdims=1)", "MatMul(x, ConstantOfShape(shape=[k,1], value=1.0))"),
    ("mean of sum", {"x": "f[a,b]", "y": "f[a,b]"}, "ReduceMean(Add(x, y), axes=[1], keepdims=1)", "Add(ReduceMean(x, axes=[1], keepdims=1), ReduceMean(y, axes=[1], keepdims=1))"),
    ("sum of concat", {"x": "f[a,b]", "y": "f[a,c]"}, "ReduceSum(Concat(x, y, axis=1), axes=[1], keepdims=1)", "Add(ReduceSum(x, axes=[1], keepdims=1), ReduceSum(y, axes=[1], keepdims=1))"),
    ("max of concat", {"x": "f[a,b]", "y": "f[a,c]"}, "ReduceMax(Concat(x, y, axis=1), axes=[1], keepdims=1)", "Max(ReduceMax(x, axes=[1], keepdims=1), ReduceMax(y, axes=[1], keepdims=1))"),
    ("sum of reshape", {"x": "f[a,b*c]"}, "ReduceSum(Reshape(x, shape=[a,b,c]), axes=[1,2], keepdims=0)", "ReduceSum(x, axes=[1], keepdims=0)"),
    ("mean as sum", {"x": "f[a,b]"}, "Mul(ReduceMean(x, axes=[1], keepdims=1), b)", "ReduceSum(x, axes=[1], keepdims=1)"),
    ("global average pool", {"x": "f[n,c,h,w]"}, "GlobalAveragePool(x)", "ReduceMean(x, axes=[2,3], keepdims=1)"),
    ("sum of matmul", {"a": "f[m,k]", "b": "f[k,n]"}, "ReduceSum(MatMul(a, b), axes=[0], keepdims=1)", "MatMul(ReduceSum(a, axes=[0], keepdims=1), b)"),
    ("neg max is min", {"x": "f[a,b]"}, "Neg(ReduceMax(Neg(x), axes=[1], keepdims=1))", "ReduceMin(x, axes=[1], keepdims=1)"),
    ("max shift", {"x": "f[a,b]", "c": "f[a,1]"}, "ReduceMax(Add(x, c), axes=[1], keepdims=1)", "Add(ReduceMax(x, axes=[1], keepdims=1), c)"),
    # Softmax and normalisation
    ("softmax", {"x": "f[...,n]"}, "Softmax(x, axis=-1)", "Div(Exp(x), ReduceSum(Exp(x), axes=[-1], keepdims=1))"),
    ("softmax shift", {"x": "f[b,n]", "c": "f[b,1]"}, "Softmax(Add(x, c), axis=1)", "Softmax(x, axis=1)"),
    ("softmax stable", {"x": "f[b,n]"}, "Div(Exp(Sub(x, ReduceMax(x, axes=[1], keepdims=1))), ReduceSum(Exp(Sub(x, ReduceMax(x, axes=[1], keepdims=1))), axes=[1], keepdims=1))", "Softmax(x, axis=1)"),
    ("log softmax", {"x": "f[b,n]"}, "LogSoftmax(x, axis=1)", "Log(Softmax(x, axis=1))"),
    ("softmax sums to one", {"x": "f[b,n]", "y": "f[b,n]"}, "ReduceSum(Add(Softmax(x, axis=1), y), axes=[1], keepdims=1)", "Add(ReduceSum(y, axes=[1], keepdims=1), 1.0)"),
    ("softmax transpose", {"x": "f[a,b]"}, "Transpose(Softmax(x, axis=1), perm=[1,0])", "Softmax(Transpose(x, perm=[1,0]), axis=0)"),
    ("attention scale", {"q": "f[...,t,d]", "k": "f[...,d,u]", "s": "real"}, "Softmax(Mul(MatMul(q, k), s), axis=-1)", "Softmax(MatMul(Mul(q, s), k), axis=-1)"),
    ("attention denominator last", {"x": "f[t,u]", "v": "f[u,d]"}, "MatMul(Softmax(x, axis=1), v)", "Div(MatMul(Exp(x), v), ReduceSum(Exp(x), axes=[1], keepdims=1))"),
    ("layer norm affine", {"x": "f[...,n]", "q": "f[n]", "b": "f[n]", "e": "real>0", "i": "f[n]"}, "Mul(LayerNormalization(x, q, b, axis=-1, epsilon=e), i)", "LayerNormalization(x, Mul(q, i), Mul(b, i), axis=-1, epsilon=e)"),
    ("layer norm into matmul", {"x": "f[t,n]", "q": "f[n]", "b": "f[n]", "e": "real>0", "a": "f[n,m]"}, "MatMul(LayerNormalization(x, q, b, axis=1, epsilon=e), a)", "Add(MatMul(LayerNormalization(x, ConstantOfShape(shape=[n], value=1.0), axis=1, epsilon=e), Mul(a, Reshape(q, shape=[n,1]))), MatMul(Reshape(b, shape=[1,n]), a))"),
    ("layer norm decomposed", {"x": "f[t,n]", "q": "f[n]", "b": "f[n]", "e": "real>0"}, "Add(Mul(Div(Sub(x, ReduceMean(x, axes=[1], keepdims=1)), Sqrt(Add(ReduceMean(Mul(Sub(x, ReduceMean(x, axes=[1], keepdims=1)), Sub(x, ReduceMean(x, axes=[1], keepdims=1))), axes=[1], keepdims=1), e))), q), b)", "LayerNormalization(x, q, b, axis=1, epsilon=e)"),
    ("layer norm shift", {"x": "f[t,n]", "q": "f[n]", "b": "f[n]", "e": "real>0", "c": "f[t,1]"}, "LayerNormalization(Add(x, c), q, b, axis=1, epsilon=e)", "LayerNormalization(x, q, b, axis=1, epsilon=e)"),
    ("batch norm as scale", {"x": "f[n,c,h,w]", **bn("c")}, "BatchNormalization(x, q, b, m, v, epsilon=e)", "Add(Mul(x, Reshape(Div(q, Sqrt(Add(v, e))), shape=[c,1,1])), Reshape(Sub(b, Div(Mul(m, q), Sqrt(Add(v, e)))), shape=[c,1,1]))"),
    # Pointwise
    ("relu idempotent", {"x": "f[...,n]"}, "Relu(Relu(x))", "Relu(x)"),
    ("relu scale", {"x": "f[n]", "k": "real>0"}, "Relu(Mul(x, k))", "Mul(Relu(x), k)"),
    ("relu as max", {"x": "f[n]"}, "Max(x, 0.0)", "Relu(x)"),
    ("abs from relu", {"x": "f[n]"}, "Add(Relu(x), Relu(Neg(x)))", "Abs(x)"),
    ("clips compose", {"x": "f[n]"}, "Clip(Clip(x, min=0.0, max=6.0), min=-1.0, max=4.0)", "Clip(x, min=0.0, max=4.0)"),
    ("relu then clip", {"x": "f[n]"}, "Clip(Relu(x), min=-1.0, max=6.0)", "Clip(x, min=0.0, max=6.0)"),
    ("max min absorption", {"x": "f[n]", "y": "f[n]"}, "Max(x, Min(x, y))", "x"),
    ("max associative", {"x": "f[n]", "y": "f[n]", "z": "f[n]"}, "Max(Max(x, y), z)", "Max(x, Max(y, z))"),
    ("max plus min", {"x": "f[n]", "y": "f[n]"}, "Add(Max(x, y), Min(x, y))", "Add(x, y)"),
    ("max distributes", {"x": "f[n]", "y": "f[n]", "z": "f[n]"}, "Add(Max(x, y), z)", "Max(Add(x, z), Add(y, z))"),
    ("leaky relu", {"x": "f[n]"}, "LeakyRelu(x, alpha=0.25)", "Sub(Relu(x), Mul(Relu(Neg(x)), 0.25))"),
    ("relu of max pool", {"x": "f[n,c,h,w]", "s": "ints[2]>=1", "k": "ints[2]>=1"}, "Relu(MaxPool(x, kernel_shape=k, strides=s, pads=[0,0,0,0], dilations=[1,1]))", "MaxPool(Relu(x), kernel_shape=k, strides=s, pads=[0,0,0,0], dilations=[1,1])"),
    ("relu of padded max pool", {"x": "f[n,c,h,w]", "s": "ints[2]>=1"}, "Relu(MaxPool(x, kernel_shape=[3,3], strides=s, pads=[1,1,1,1], dilations=[1,1]))", "MaxPool(Relu(x), kernel_shape=[3,3], strides=s, pads=[1,1,1,1], dilations=[1,1])"),
    ("max pool concat", {"x": "f[n,c,h,w]", "y": "f[n,e,h,w]", "s": "ints[2]>=1", "k": "ints[2]>=1", "p": "ints[4]>=0", "d": "ints[2]>=1"}, "Concat(MaxPool(x, kernel_shape=k, strides=s, pads=p, dilations=d), MaxPool(y, kernel_shape=k, strides=s, pads=p, dilations=d), axis=1)", "MaxPool(Concat(x, y, axis=1), kernel_shape=k, strides=s, pads=p, dilations=d)", ["p_0 < k_0", "p_1 < k_1", "p_2 < k_0", "p_3 < k_1"]),
    ("sigmoid symmetry", {"x": "f[n]"}, "Sub(1.0, Sigmoid(x))", "Sigmoid(Neg(x))"),
    ("tanh from sigmoid", {"x": "f[n]"}, "Sub(Mul(Sigmoid(Mul(x, 2.0)), 2.0), 1.0)", "Tanh(x)"),
    ("div as mul", {"x": "f[n]", "y": "f[n]"}, "Div(x, y)", "Mul(x, Reciprocal(y))"),
    ("div of div", {"x": "f[n]", "y": "f[n]", "z": "f[n]"}, "Div(Div(x, y), z)", "Div(x, Mul(y, z))"),
    ("common denominator", {"x": "f[n]", "y": "f[n]", "z": "f[n]"}, "Add(Div(x, z), Div(y, z))", "Div(Add(x, y), z)"),
    ("exp of sum", {"x": "f[n]", "y": "f[n]"}, "Mul(Exp(x), Exp(y))", "Exp(Add(x, y))"),
    ("square", {"x": "f[n]"}, "Pow(x, 2.0)", "Mul(x, x)"),
    ("binomial", {"x": "f[n]", "y": "f[n]"}, "Mul(Add(x, y), Sub(x, y))", "Sub(Mul(x, x), Mul(y, y))"),
    ("where not", {"c": "b[n]", "x": "f[n]", "y": "f[n]"}, "Where(Not(c), x, y)", "Where(c, y, x)"),
    ("where add", {"c": "b[n]", "x": "f[n]", "y": "f[n]", "z": "f[n]"}, "Add(Where(c, x, y), z)", "Where(c, Add(x, z), Add(y, z))"),
    ("where relu", {"c": "b[n]", "x": "f[n]", "y": "f[n]"}, "Relu(Where(c, x, y))", "Where(c, Relu(x), Relu(y))"),
    ("silu", {"x": "f[n]"}, "Mul(x, Sigmoid(x))", "Div(x, Add(Exp(Neg(x)), 1.0))"),
    ("cumsum as matmul", {"x": "f[m,n]"}, "CumSum(x, axis=1, exclusive=0, reverse=0)", "MatMul(x, Trilu(ConstantOfShape(shape=[n,n], value=1.0), upper=1, k=0))"),
    # Mixed
    ("more 1: Conv", {"x":"f[n,c,h,w]","a":"f[g*o,k,u,v]",**G},f"Conv(Relu(x), a, {CG})",f"Conv(Max(x, 0.0), a, {CG})",["c == g*k"]),
    ("more 2: Add", {"x":"f[n,c,h,w]","a":"f[o,k,u,v]","b":"f[o,k,u,v]",**G},f"Add(Conv(x, a, {CG}), Conv(x, b, {CG}))",f"Conv(x, Add(a,b), {CG})",["c == g*k"]),
    ("more 3: Mul", {"x":"f[n,c,h,w]","a":"f[c,1,u,v]","q":"f[c]",**V},"Mul(Conv(x, a, strides=s, pads=p, dilations=d, group=c), Reshape(q, shape=[1,c,1,1]))","Conv(x, Mul(a, Reshape(q, shape=[c,1,1,1])), strides=s, pads=p, dilations=d, group=c)"),
    ("more 4: Conv", {"x":"f[n,c,h,w]","a":"f[c,1,u,v]","q":"f[c]","s":"ints[2]>=1","d":"ints[2]>=1"},"Conv(Mul(x, Reshape(q, shape=[1,c,1,1])), a, strides=s, pads=[0,0,0,0], dilations=d, group=c)","Conv(x, Mul(a, Reshape(q, shape=[c,1,1,1])), strides=s, pads=[0,0,0,0], dilations=d, group=c)"),
    ("more 5: Conv", {"x":"f[n,c,h,w]","a":"f[o,c,1,1]","b":"f[r,o,u,v]",**V},f"Conv(Conv(x, a, {C1}), b, {CV})",f"Conv(x, Transpose(Reshape(MatMul(Transpose(Reshape(b, shape=[r,o,u*v]), perm=[0,2,1]), Reshape(a, shape=[o,c])), shape=[r,u,v,c]), perm=[0,3,1,2]), {CV})"),
    ("more 6: MatMul", {"x":"f[b,t,k]","a":"f[k,h*d]","c":"f[k,h*d]"},"MatMul(Transpose(Reshape(MatMul(x,a),shape=[b,t,h,d]),perm=[0,2,1,3]), Transpose(Reshape(MatMul(x,c),shape=[b,t,h,d]),perm=[0,2,3,1]))","MatMul(Transpose(Reshape(MatMul(x,a),shape=[b,t,h,d]),perm=[0,2,1,3]), Transpose(Transpose(Reshape(MatMul(x,c),shape=[b,t,h,d]),perm=[0,2,1,3]),perm=[0,1,3,2]))"),
    ("more 7: MatMul", {"q":"f[...,t,d]","k":"f[...,u,d]","v":"f[...,u,e]","s":"real"},"MatMul(Softmax(Mul(MatMul(q, Transpose(k, perm=[\"...\",-1,-2])), s), axis=-1), v)","MatMul(Softmax(MatMul(Mul(q,s), Transpose(k, perm=[\"...\",-1,-2])), axis=-1), v)"),
    ("more 8: ReduceMean", {"x":"f[n,c,h,w]"},"ReduceMean(x, axes=[2,3], keepdims=1)","AveragePool(x, kernel_shape=[h,w], strides=[1,1], pads=[0,0,0,0], dilations=[1,1], count_include_pad=0)"),
    ("more 9: GlobalMaxPool", {"x":"f[n,c,h,w]"},"GlobalMaxPool(x)","MaxPool(x, kernel_shape=[h,w], strides=[1,1], pads=[0,0,0,0], dilations=[1,1])"),
    ("more 10: MaxPool", {"x":"f[n,c,h,w]","k":"ints[2]>=1","l":"ints[2]>=1"},"MaxPool(MaxPool(x, kernel_shape=k, strides=[1,1], pads=[0,0,0,0], dilations=[1,1]), kernel_shape=l, strides=[1,1], pads=[0,0,0,0], dilations=[1,1])","MaxPool(x, kernel_shape=[k_0+l_0-1,k_1+l_1-1], strides=[1,1], pads=[0,0,0,0], dilations=[1,1])"),
    ("more 11: MaxPool", {"x":"f[n,c,h,w]"},"MaxPool(MaxPool(x, kernel_shape=[2,2], strides=[2,2], pads=[0,0,0,0], dilations=[1,1]), kernel_shape=[2,2], strides=[2,2], pads=[0,0,0,0], dilations=[1,1])","MaxPool(x, kernel_shape=[4,4], strides=[4,4], pads=[0,0,0,0], dilations=[1,1])"),
    ("more 12: AveragePool", {"x":"f[n,c,h,w]"},"AveragePool(AveragePool(x, kernel_shape=[2,2], strides=[2,2], pads=[0,0,0,0], dilations=[1,1], count_include_pad=0), kernel_shape=[2,2], strides=[2,2], pads=[0,0,0,0], dilations=[1,1], count_include_pad=0)","AveragePool(x, kernel_shape=[4,4], strides=[4,4], pads=[0,0,0,0], dilations=[1,1], count_include_pad=0)"),
    ("more 13: Add", {"x":"f[n,k]","a":"f[k,m]","b":"f[m]","c":"f[m,r]","e":"f[r]"},"Add(MatMul(Add(MatMul(x,a),b),c),e)","Add(MatMul(x,MatMul(a,c)),Add(Reshape(MatMul(Reshape(b,shape=[1,m]),c),shape=[r]),e))"),
    ("more 14: Add", {"x":"f[n,2*k]","a":"f[k,m]","c":"f[k,m]"},"Add(MatMul(Split(x,axis=1,split=[k,k])[0],a),MatMul(Split(x,axis=1,split=[k,k])[1],c))","MatMul(x,Concat(a,c,axis=0))"),
    ("more 15: RMSNormalization", {"x":"f[t,n]","q":"f[n]","e":"real>0"},"RMSNormalization(x, q, axis=1, epsilon=e)","Mul(Mul(x, Reciprocal(Sqrt(Add(ReduceMean(Mul(x,x),axes=[1],keepdims=1), e)))), q)"),
    ("more 16: InstanceNormalization", {"x":"f[n,c,h,w]","q":"f[c]","b":"f[c]","e":"real>0"},"InstanceNormalization(x,q,b,epsilon=e)","GroupNormalization(x,q,b,num_groups=c,epsilon=e)"),
    ("more 17: GroupNormalization", {"x":"f[n,c,h,w]","q":"f[c]","b":"f[c]","e":"real>0"},"GroupNormalization(x,q,b,num_groups=1,epsilon=e)","Add(Mul(Reshape(LayerNormalization(Reshape(x,shape=[n,c*h*w]),ConstantOfShape(shape=[c*h*w],value=1.0),axis=1,epsilon=e),shape=[n,c,h,w]),Reshape(q,shape=[1,c,1,1])),Reshape(b,shape=[1,c,1,1]))"),
    ("more 18: Gelu", {"x":"f[n]"},"Gelu(x, approximate=\"none\")","Mul(Mul(x,0.5),Add(1.0,Erf(Div(x,Sqrt(2.0)))))"),
    ("more 19: HardSigmoid", {"x":"f[n]"},"HardSigmoid(x,alpha=0.5,beta=0.5)","Clip(Add(Mul(x,0.5),0.5),min=0.0,max=1.0)"),
    ("more 20: Softplus", {"x":"f[n]"},"Softplus(x)","Add(x,Softplus(Neg(x)))"),
    ("more 21: Neg", {"x":"f[n]"},"Neg(Log(Sigmoid(x)))","Softplus(Neg(x))"),
    ("more 22: ReduceLogSumExp", {"x":"f[b,n]"},"ReduceLogSumExp(x,axes=[1],keepdims=1)","Log(ReduceSum(Exp(x),axes=[1],keepdims=1))"),
    ("more 23: Sub", {"x":"f[b,n]"},"Sub(x, ReduceLogSumExp(x,axes=[1],keepdims=1))","LogSoftmax(x,axis=1)"),
    ("more 24: ReduceLogSumExp", {"x":"f[b,n]","c":"f[b,1]"},"ReduceLogSumExp(Add(x,c),axes=[1],keepdims=1)","Add(ReduceLogSumExp(x,axes=[1],keepdims=1),c)"),
    ("more 25: Transpose", {"x":"f[n,m]"},"Transpose(Concat(x,x,axis=0),perm=[1,0])","Tile(Transpose(x,perm=[1,0]),repeats=[1,2])"),
    ("more 26: Slice", {"x":"f[n,m]"},"Slice(x,starts=[0,0],ends=[n,m],axes=[0,1],steps=[1,1])","x"),
    ("more 27: Slice", {"x":"f[2*n]"},"Slice(x,starts=[0],ends=[2*n],axes=[0],steps=[2])","Reshape(Slice(Reshape(x,shape=[n,2]),starts=[0],ends=[1],axes=[1],steps=[1]),shape=[n])"),
    ("more 28: Relu", {"x":"f[n,m]","i":"i[t]<n"},"Relu(Gather(x,i,axis=0))","Gather(Relu(x),i,axis=0)"),
    ("more 29: ReduceSum", {"x":"f[n,m]","y":"f[n,m]"},"ReduceSum(Mul(x,y),axes=[1],keepdims=0)","Einsum(x,y,equation=\"ij,ij->i\")"),
    ("more 30: Add", {"x":"f[n,c,h,w]","a":"f[c,o,u,v]","b":"f[c,o,u,v]",**V},"Add(ConvTranspose(x,a,strides=s,pads=p,dilations=d,group=1,output_padding=[0,0]),ConvTranspose(x,b,strides=s,pads=p,dilations=d,group=1,output_padding=[0,0]))","ConvTranspose(x,Add(a,b),strides=s,pads=p,dilations=d,group=1,output_padding=[0,0])"),
    ("more 31: AveragePool", {"x":"f[n,c,h,w]","a":"f[o,c,1,1]"},f"AveragePool(Conv(x,a,{C1}),kernel_shape=[2,2],strides=[2,2],pads=[0,0,0,0],dilations=[1,1],count_include_pad=0)",f"Conv(AveragePool(x,kernel_shape=[2,2],strides=[2,2],pads=[0,0,0,0],dilations=[1,1],count_include_pad=0),a,{C1})"),
    ("more 32: Conv", {"x":"f[n,c,h,w]","a":"f[o,c,1,1]","s":"ints[2]>=1"},"Conv(x,a,strides=s,pads=[0,0,0,0],dilations=[1,1],group=1)",f"Conv(AveragePool(x,kernel_shape=[1,1],strides=s,pads=[0,0,0,0],dilations=[1,1],count_include_pad=0),a,{C1})"),
    ("more 33: Max", {"x":"f[n]","y":"f[n]"},"Max(x,y)","Mul(Add(Add(x,y),Abs(Sub(x,y))),0.5)"),
    ("more 34: Mul", {"x":"f[n]"},"Mul(x,Sign(x))","Abs(x)"),
    ("more 35: Sqrt", {"x":"f[n]"},"Sqrt(Mul(x,x))","Abs(x)"),
    ("more 36: Mul", {"x":"f[n]"},"Mul(Abs(x),Abs(x))","Mul(x,x)"),
    ("more 37: Exp", {"x":"f[n]"},"Exp(Neg(x))","Reciprocal(Exp(x))"),
    ("more 38: Where", {"x":"f[n]"},"Where(Greater(x,0.0),x,0.0)","Relu(x)"),
    ("more 39: PRelu", {"x":"f[n]"},"PRelu(x,0.25)","LeakyRelu(x,alpha=0.25)"),
    ("more 40: Add", {"x":"f[n,m]","c":"f[n]"},"Add(x,Reshape(c,shape=[n,1]))","Transpose(Add(Transpose(x,perm=[1,0]),c),perm=[1,0])"),
    ("more 41: Conv", {"x":"f[n,c,t]","a":"f[o,c,1]"},"Conv(x,a,strides=[1],pads=[0,0],dilations=[1],group=1)","Transpose(MatMul(Transpose(x,perm=[0,2,1]),Transpose(Reshape(a,shape=[o,c]),perm=[1,0])),perm=[0,2,1])"),
    ("more 42: Mul", {"x":"f[n,c,h,w]","a":"f[o,c,u,v]","t":"f[o]","k":"real",**V},f"Mul(Conv(x,a,t,{CV}),k)",f"Conv(x,Mul(a,k),Mul(t,k),{CV})"),
    ("more 43: Add", {"x":"f[n,c,h,w]","a":"f[o,c,3,3]","t":"f[o,c,1,1]"},"Add(Conv(x,a,strides=[1,1],pads=[1,1,1,1],dilations=[1,1],group=1),Conv(x,t,strides=[1,1],pads=[0,0,0,0],dilations=[1,1],group=1))","Conv(x,Add(a,Pad(t,pads=[0,0,1,1,0,0,1,1],value=0.0)),strides=[1,1],pads=[1,1,1,1],dilations=[1,1],group=1)"),
    ("more 44: Add", {"x":"f[n,c,h,w]","a":"f[c,c,3,3]"},"Add(Conv(x,a,strides=[1,1],pads=[1,1,1,1],dilations=[1,1],group=1),x)","Conv(x,Add(a,Pad(Reshape(EyeLike(shape=[c,c],k=0),shape=[c,c,1,1]),pads=[0,0,1,1,0,0,1,1],value=0.0)),strides=[1,1],pads=[1,1,1,1],dilations=[1,1],group=1)"),
    *(
        (f"{f} of {way}", {"x": "f[n,c,h,w]", "y": "f[n,c,h,w]"}, text.format(f"{f}(x)", f"{f}(y)"), f"{f}({text.format('x', 'y')})")
        for f in ("Sigmoid", "Tanh", "Erf", "LeakyRelu", "Selu")
        for way, text in (("GlobalMaxPool", "GlobalMaxPool({0})"), ("a least", "ReduceMin({0}, axes=[1,3])"), ("the larger", "Max({0}, {1})"))
    ),
    ("sigmoid of padded max pool", {"x": "f[n,c,h,w]", "s": "ints[2]>=1"}, "Sigmoid(MaxPool(x, kernel_shape=[3,3], strides=s, pads=[1,1,1,1], dilations=[1,1]))", "MaxPool(Sigmoid(x), kernel_shape=[3,3], strides=s, pads=[1,1,1,1], dilations=[1,1])"),
]  # fmt: skip

FALSE: list[Case] = [
    ("conv concat grouped", {**GROUPED, "b": "f[g*r,c,kh,kw]", **G}, f"Concat(Conv(x, a, {CG}), Conv(x, b, {CG}), axis=1)", f"Conv(x, Concat(a, b, axis=0), {CG})"),
    ("two convs wrong group", {**GROUPED, "y": "f[n,g*c,h,w]", "b": "f[g*o,c,kh,kw]", **G}, f"Concat(Conv(x, a, {CG}), Conv(y, b, {CG}), axis=1)", f"Conv(Concat(y, x, axis=1), Concat(a, b, axis=0), {CG.replace('group=g', 'group=2*g')})"),
    ("conv swap weights", {**CONV, "b": "f[o,c,kh,kw]", **V}, f"Concat(Conv(x, a, {CV}), Conv(x, b, {CV}), axis=1)", f"Conv(x, Concat(b, a, axis=0), {CV})"),
    ("enlarge wrong pad", {"x": "f[n,c,h,w]", "a": "f[o,c,1,1]", "s": "ints[2]>=1"}, "Conv(x, a, strides=s, pads=[0,0,0,0], dilations=[1,1], group=1)", "Conv(x, Pad(a, pads=[0,0,1,1,0,0,1,1], value=0.0), strides=s, pads=[0,0,2,2], dilations=[1,1], group=1)"),
    ("enlarge with ones", {"x": "f[n,c,h,w]", "a": "f[o,c,1,1]", "s": "ints[2]>=1"}, "Conv(x, a, strides=s, pads=[0,0,0,0], dilations=[1,1], group=1)", "Conv(x, Pad(a, pads=[0,0,1,1,0,0,1,1], value=1.0), strides=s, pads=[1,1,1,1], dilations=[1,1], group=1)"),
    ("pad not zero into conv", {**CONV, **V}, f"Conv(Pad(x, pads=[0,0,1,1,0,0,1,1], value=1.0), a, {CV})", "Conv(x, a, strides=s, pads=[p_0+1, p_1+1, p_2+1, p_3+1], dilations=d, group=1)"),
    ("convs compose padded", {"x": "f[n,c,h,w]", "a": "f[c,c,3,3]", "b": "f[c,c,3,3]"}, "Conv(Conv(x, a, strides=[1,1], pads=[1,1,1,1], dilations=[1,1], group=1), b, strides=[1,1], pads=[1,1,1,1], dilations=[1,1], group=1)", "Conv(Conv(x, b, strides=[1,1], pads=[1,1,1,1], dilations=[1,1], group=1), a, strides=[1,1], pads=[1,1,1,1], dilations=[1,1], group=1)"),
    ("bn fold without mean", {**CONV, **bn("o"), **V}, f"BatchNormalization(Conv(x, a, {CV}), q, b, m, v, epsilon=e)", f"Conv(x, Mul(a, Reshape(Div(q, Sqrt(Add(v, e))), shape=[o, 1, 1, 1])), b, {CV})"),
    ("bn fold wrong axis", {"x": "f[n,c,h,w]", "a": "f[c,c,kh,kw]", "q": "f[c]", **V}, f"Mul(Conv(x, a, {CV}), Reshape(q, shape=[1, c, 1, 1]))", f"Conv(x, Mul(a, Reshape(q, shape=[1, c, 1, 1])), {CV})"),
    ("matmul commutes", {"a": "f[k,k]", "b": "f[k,k]"}, "MatMul(a, b)", "MatMul(b, a)"),
    ("matmul transposes same order", {"a": "f[k,k]", "b": "f[k,k]"}, "Transpose(MatMul(a, b), perm=[1,0])", "MatMul(Transpose(a, perm=[1,0]), Transpose(b, perm=[1,0]))"),
    ("qkv swapped", {"x": "f[b,k]", "a": "f[k,m]", "c": "f[k,m]"}, "MatMul(x, a)", "Split(MatMul(x, Concat(a, c, axis=1)), axis=1, split=[m, m])[1]"),
    ("matmul distributes over mul", {"a": "f[m,k]", "b": "f[k,n]", "c": "f[k,n]"}, "MatMul(a, Mul(b, c))", "Mul(MatMul(a, b), MatMul(a, c))"),
    ("relu of sum", {"x": "f[n]", "y": "f[n]"}, "Relu(Add(x, y))", "Add(Relu(x), Relu(y))"),
    ("relu scale any sign", {"x": "f[n]", "k": "real"}, "Relu(Mul(x, k))", "Mul(Relu(x), k)"),
    ("relu linear", {"a": "f[m,k]", "b": "f[k,n]"}, "Relu(MatMul(a, b))", "MatMul(Relu(a), b)"),
    ("relu average pool", {"x": "f[n,c,h,w]"}, "Relu(GlobalAveragePool(x))", "GlobalAveragePool(Relu(x))"),
    ("softmax scale", {"x": "f[b,n]"}, "Softmax(Mul(x, 2.0), axis=1)", "Mul(Softmax(x, axis=1), 2.0)"),
    ("softmax wrong shift", {"x": "f[b,n]", "c": "f[1,n]"}, "Softmax(Add(x, c), axis=1)", "Softmax(x, axis=1)"),
    ("softmax wrong axis", {"x": "f[n,n]"}, "Softmax(x, axis=1)", "Softmax(x, axis=0)"),
    ("layer norm scale", {"x": "f[t,n]", "q": "f[n]", "b": "f[n]", "e": "real>0"}, "LayerNormalization(Mul(x, 2.0), q, b, axis=1, epsilon=e)", "LayerNormalization(x, q, b, axis=1, epsilon=e)"),
    ("reshape transposes", {"x": "f[a,b]"}, "Reshape(x, shape=[b, a])", "Transpose(x, perm=[1,0])"),
    ("head split wrong", {"x": "f[t,a*b]"}, "Reshape(x, shape=[t,a,b])", "Transpose(Reshape(x, shape=[t,b,a]), perm=[0,2,1])"),
    ("channel shuffle once", {"x": "f[n,a*b,h]"}, "Reshape(Transpose(Reshape(x, shape=[n,a,b,h]), perm=[0,2,1,3]), shape=[n,a*b,h])", "x"),
    ("concat order", {"x": "f[a,b]", "y": "f[a,b]"}, "Concat(x, y, axis=0)", "Concat(y, x, axis=0)"),
    ("slice off by one", {"x": "f[n]", "a": "int>=0", "c": "int>=1"}, "Slice(x, starts=[a], ends=[a+c], axes=[0], steps=[1])", "Slice(x, starts=[a+1], ends=[a+c+1], axes=[0], steps=[1])", ["a + c + 1 <= n"]),
    ("sum of products", {"x": "f[a,b]", "y": "f[a,b]"}, "ReduceSum(Mul(x, y), axes=[1], keepdims=1)", "Mul(ReduceSum(x, axes=[1], keepdims=1), ReduceSum(y, axes=[1], keepdims=1))"),
    ("mean of means of concat", {"x": "f[a,b]", "y": "f[a,c]"}, "ReduceMean(Concat(x, y, axis=1), axes=[1], keepdims=1)", "Mul(Add(ReduceMean(x, axes=[1], keepdims=1), ReduceMean(y, axes=[1], keepdims=1)), 0.5)"),
    ("max of sum", {"x": "f[a,b]", "y": "f[a,b]"}, "ReduceMax(Add(x, y), axes=[1], keepdims=1)", "Add(ReduceMax(x, axes=[1], keepdims=1), ReduceMax(y, axes=[1], keepdims=1))"),
    *(
        (f"max of {f}", {"x": "f[a,b,c]"}, f"ReduceMax({f}(x), axes=[1,2])", f"{f}(ReduceMax(x, axes=[1,2]))")
        for f in ("Gelu", "HardSwish", "Mish", "Cosh", "Sin", "Abs", "Neg")
    ),
    *(
        (f"larger of {f}", {"x": "f[a]", "y": "f[a]"}, f"Max({f}(x), {f}(y))", f"{f}(Max(x, y))")
        for f in ("Gelu", "HardSwish", "Cosh", "Sin", "Abs", "Reciprocal")
    ),
    ("max negative scale", {"x": "f[a,b]"}, "ReduceMax(Neg(x), axes=[1], keepdims=1)", "Neg(ReduceMax(x, axes=[1], keepdims=1))"),
    ("clips wrong", {"x": "f[n]"}, "Clip(Clip(x, min=0.0, max=6.0), min=1.0, max=4.0)", "Clip(x, min=0.0, max=4.0)"),
    ("max min wrong", {"x": "f[n]", "y": "f[n]"}, "Max(x, Min(x, y))", "y"),
    ("abs of sum", {"x": "f[n]", "y": "f[n]"}, "Abs(Add(x, y))", "Add(Abs(x), Abs(y))"),
    ("exp of product", {"x": "f[n]", "y": "f[n]"}, "Mul(Exp(x), Exp(y))", "Exp(Mul(x, y))"),
    ("sqrt of sum", {"x": "f[n]", "y": "f[n]"}, "Sqrt(Add(x, y))", "Add(Sqrt(x), Sqrt(y))"),
    ("root of a square", {"x": "f[n]"}, "Sqrt(Mul(x, x))", "x"),
    ("inverse of sum", {"x": "f[n]", "y": "f[n]"}, "Reciprocal(Add(x, y))", "Add(Reciprocal(x), Reciprocal(y))"),
    ("average pool excluding pads as conv", {"x": "f[n,c,h,w]"}, "AveragePool(x, kernel_shape=[3,3], strides=[1,1], pads=[1,1,1,1], dilations=[1,1], count_include_pad=0)", "Mul(Conv(x, ConstantOfShape(shape=[c,1,3,3], value=1.0), strides=[1,1], pads=[1,1,1,1], dilations=[1,1], group=c), Reciprocal(9.0))"),
    ("cumsum reversed", {"x": "f[m,n]"}, "CumSum(x, axis=1, exclusive=0, reverse=1)", "CumSum(x, axis=1, exclusive=0, reverse=0)"),
    ("cumsum exclusive", {"x": "f[m,n]"}, "CumSum(x, axis=1, exclusive=1, reverse=0)", "CumSum(x, axis=1, exclusive=0, reverse=0)"),
    ("gather other axis", {"x": "f[v,v]", "i": "i[v]<v"}, "Gather(x, i, axis=0)", "Gather(x, i, axis=1)"),
    ("where swapped", {"c": "b[n]", "x": "f[n]", "y": "f[n]"}, "Where(c, x, y)", "Where(c, y, x)"),
]  # fmt: skip


def rule_of(case: Case) -> Rule:
    """The rule of a case."""
    name, forall, lhs, rhs, *rest = case
    return parse_rule({"id": name, "forall": forall, "lhs": [lhs], "rhs": [rhs], "where": rest[0] if rest else []})
