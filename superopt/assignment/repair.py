"""Choices within the limit of memory: repair by changes of single nodes, and merging of two choices by components."""

from __future__ import annotations

import numpy as np
from superopt.assignment.memory import Memory
from superopt.assignment.pairwise import Pairwise

def repair(model, memory, choice, multipliers, rounds=200):
    """Change single nodes until memory fits"""
    x=choice.copy(); room=memory.room
    node_of=np.repeat(np.arange(model.nodes),model.sizes)
    price=memory.prices(multipliers,model.strategies)
    for _ in range(rounds):
        h=memory.held(x); over=h-room
        if over.max(initial=0)<=0: return x
        g=(over>0).astype(float)
        relief=memory.prices(g,model.strategies)
        cur=model.offsets[:-1]+x
        gain=np.repeat(relief[cur],model.sizes)-relief
        c=model.conditional(x); d=c-np.repeat(c[cur],model.sizes)
        cand=np.flatnonzero(gain>0)
        if not len(cand): return None
        score=np.maximum(d[cand],0)/gain[cand]
        # negative cost changes that relieve: best first
        score=np.where(d[cand]<0,d[cand],score)
        order=cand[np.argsort(score,kind='stable')]
        total=np.maximum(over,0).sum(); taken=0.0; blocked=set(); used=0
        new=x.copy()
        for s in order[:400].tolist():
            i=int(node_of[s])
            if i in blocked: continue
            if used and taken>0.2*total: break
            new[i]=s-model.offsets[i]; taken+=gain[s]; used+=1
            blocked.add(i); blocked.update(model.neighbours[i])
        x=new
    return None

def components(model, changed):
    comp=np.full(model.nodes,-1); k=0
    idx=np.flatnonzero(changed).tolist()
    for i in idx:
        if comp[i]>=0: continue
        stack=[i]; comp[i]=k
        while stack:
            v=stack.pop()
            for j in model.neighbours[v]:
                if changed[j] and comp[j]<0: comp[j]=k; stack.append(j)
        k+=1
    return comp,k

def combine(model, memory, base, other, multipliers):
    """From a feasible base, apply components of the difference to other while cost falls and memory fits."""
    changed=base!=other
    if not changed.any(): return base
    comp,k=components(model,changed)
    # cost deltas
    dn=model.costs[model.offsets[:-1]+other]-model.costs[model.offsets[:-1]+base]
    delta=np.bincount(comp[changed],dn[changed],k)
    a,b=model.pairs.T
    te=model.tables[model.entries(other)]-model.tables[model.entries(base)]
    touched=changed[a]|changed[b]
    ce=np.where(changed[a],comp[a],comp[b])
    # an edge between two components cannot exist
    delta+=np.bincount(ce[touched],te[touched],k)
    allocs=np.flatnonzero(changed[memory.owner])
    ow=memory.owner[allocs]
    du=memory.bytes[memory.offsets[allocs]+other[ow]]-memory.bytes[memory.offsets[allocs]+base[ow]]
    nz=du!=0; allocs=allocs[nz]; du=du[nz]; ca=comp[memory.owner[allocs]]
    before=np.concatenate([[0.0],np.cumsum(multipliers)])
    rate=before[memory.end[allocs]]-before[memory.start[allocs]]
    dm=np.bincount(ca,du*rate,k)
    order=np.argsort(ca,kind='stable'); bounds=np.searchsorted(ca[order],np.arange(k+1))
    slack=memory.room-memory.held(base)
    def change(c):
        al=allocs[order[bounds[c]:bounds[c+1]]]
        if not len(al): return None
        dd=du[order[bounds[c]:bounds[c+1]]]
        lo=memory.start[al].min(); hi=memory.end[al].max()
        ch=np.bincount(memory.start[al]-lo,dd,hi-lo+1)-np.bincount(memory.end[al]-lo,dd,hi-lo+1)
        return lo,hi,np.cumsum(ch)[:-1]
    # A: greedy from base
    result=base.copy(); applied=np.zeros(k,bool); total=0.0
    rank=np.argsort(delta+dm,kind='stable')
    for _ in range(2):
        for c in rank.tolist():
            if applied[c]: continue
            ch=change(c)
            if delta[c]>=0 and not (ch is not None and (ch[2]<0).any() and delta[c]+dm[c]<0): continue
            if ch is None: applied[c]=True; total+=delta[c]; continue
            lo,hi,v=ch
            if ((slack[lo:hi]-v)[v>0]>=0).all():
                applied[c]=True; total+=delta[c]; slack[lo:hi]-=v
    # undo applied ones that cost and are not needed
    for c in rank[::-1].tolist():
        if applied[c] and delta[c]>0:
            ch=change(c)
            if ch is None or (slack[ch[0]:ch[1]]+ch[2]>=0).all():
                applied[c]=False; total-=delta[c]
                if ch is not None: slack[ch[0]:ch[1]]+=ch[2]
    if total<0:
        take=changed&applied[np.maximum(comp,0)]
        result[take]=other[take]
        return result
    return base
